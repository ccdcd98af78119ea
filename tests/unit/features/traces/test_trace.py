import contextlib
import io
import json
import random
import tempfile
import unittest
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy import cli
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.features.traces.trace import explain
from tests.support.width import width


def trace(**details: Any) -> dict[str, Any]:
    return {"number": 7, "client_request": {}, "outcome": "completed", "status": 200, **details}


def turn(**details: Any) -> dict[str, Any]:
    fields = {"message": 2, "says": "Looking.", "calls": [], "need": "hard", "source": "store", "proof": "exact"}
    return {**fields, "is_empty": False, **details}


class TraceTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def report(self, written: object) -> str:
        path = self.directory / "written.json"
        path.write_text(json.dumps(written), encoding="utf-8")
        return explain(path)


class TestRefusals(TraceTestCase):
    def refusal(self, path: Path) -> str:
        with self.assertRaises(StartupError) as caught:
            explain(path)
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_a_file_that_is_no_trace_is_refused_in_one_line(self) -> None:
        path = self.directory / "file.json"
        for data in (b"", b"no JSON", b"\xff\xfe", b"[]", b"{}", b"[" * 100_000):
            path.write_bytes(data)
            self.assertIn("is not a trace", self.refusal(path), data[:20])

    def test_a_trace_that_cannot_be_read_is_refused_in_one_line(self) -> None:
        for path in (self.directory, self.directory / "absent.json", self.directory / "a\nb"):
            self.assertIn("cannot read", self.refusal(path), path)

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


class TestWords(TraceTestCase):
    def test_explain_has_words_for_every_need_source_and_proof(self) -> None:
        for expected, details in (
            ("required, found by exact: ", {}),
            ("wanted, found by near: ", {"need": "soft", "proof": "near"}),
            ("not needed, the client sent it", {"need": "none", "source": "client", "proof": ""}),
            ("required, from its thinking block (unknown: ", {"source": "display", "proof": "unknown"}),
            ("required, no source has it (unknown: ", {"source": "missing", "proof": "unknown"}),
            ("history; the model had thought nothing", {"is_empty": True}),
        ):  # fmt: skip
            self.assertIn(expected, self.report(trace(restored=[{"turns": [turn(**details)]}])), expected)

    def test_foreign_text_in_a_trace_is_cut_and_cannot_move_the_cursor(self) -> None:
        evil = "x\x1b[2J\n" * 500
        fields = turn(says=evil, calls=[evil], proof=evil)
        report = self.report(
            trace(restored=[{"turns": [fields], "divergence": evil, "repairs": {evil: 1}}], outcome=evil)
        )
        self.assertNotIn("\x1b", report)
        self.assertLess(max(map(len, report.splitlines())), 600)
        self.assertEqual(7, len(report.splitlines()))

    def test_a_trace_with_odd_fields_is_explained_or_refused_in_one_line(self) -> None:
        odd = [None, True, -1, 1.5, "x", [], {}, [[]], {"a": {}}, ["x", 1]]
        for seed in range(width(60, 600)):
            rng = random.Random(seed)
            fields = {name: rng.choice(odd) for name in turn()}
            restored = {
                name: rng.choice([*odd, [fields]]) for name in ("divergence", "repairs", "transcribed", "turns")
            }
            fields = ("number", "received_at", "client_request", "outcome", "status", "usage", "restored")
            with self.subTest(seed=seed), contextlib.suppress(StartupError):
                self.report(trace(**{name: rng.choice([*odd, [restored]]) for name in fields}))
