"""What `explain` says about files that are no traces."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy import cli
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.observers.trace import explain


def trace(**details: Any) -> dict[str, Any]:
    return {"number": 7, "client_request": {}, "outcome": "completed", "status": 200, **details}


class TestRefusals(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def refusal(self, path: Path) -> str:
        with self.assertRaises(StartupError) as caught:
            explain(path)
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_a_file_that_is_no_trace_is_refused_in_one_line(self) -> None:
        path = self.directory / "file.json"
        for data in (b"", b"no JSON", b"\xff\xfe", b"[]", b"{}", b"[" * 100_000):
            path.write_bytes(data)
            with self.subTest(data[:20]):
                self.assertIn("is not a trace", self.refusal(path))

    def test_a_trace_that_cannot_be_read_is_refused_in_one_line(self) -> None:
        for path in (self.directory, self.directory / "absent.json", self.directory / "a\nb"):
            with self.subTest(path):
                self.assertIn("cannot read", self.refusal(path))

    def test_the_explain_command_prints_the_report_or_exits_with_2(self) -> None:
        path = self.directory / "file.json"
        path.write_text(json.dumps(trace()))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertEqual(0, cli.main(["explain", str(path)]))
            self.assertEqual(2, cli.main(["explain", str(self.directory)]))
            self.assertEqual(2, cli.main(["explain"]))
        self.assertTrue(out.getvalue().startswith("#7 · completed (200)\n"))
        self.assertEqual(2, len(err.getvalue().splitlines()))
