"""Commands of the program, run in this process with a home of their own and without the developer's settings."""

import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from deepseek_cursor_proxy import cli
from deepseek_cursor_proxy.cli import questions


class Result(NamedTuple):
    code: int
    out: str
    err: str


class CommandTestCase(unittest.TestCase):
    command: tuple[str, ...] = ()

    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        place = {"HOME": str(self.home), "USERPROFILE": str(self.home), "PATH": "", "COLUMNS": "100"}
        place["APPDATA"] = str(self.home / "AppData" / "Roaming")
        # Windows opens no socket without it.
        place |= {name: value for name, value in os.environ.items() if name == "SYSTEMROOT"}
        self.enterContext(mock.patch.dict(os.environ, place, clear=True))

    def run_command(self, *arguments: str, answers: tuple[str, ...] | None = None) -> Result:
        """With answers there is a terminal to ask on."""
        written, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(written, encoding="utf-8", newline="\n")
        terminal = mock.patch.object(questions, "can_ask", return_value=answers is not None)
        asked = mock.patch("builtins.input", side_effect=answers or EOFError)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), terminal, asked as self.questions:
            try:
                code = cli.main([*self.command, *arguments])
            except SystemExit as end:  # how argparse ends after --help and --version
                self.assertIsInstance(end.code, int)
                code = int(end.code or 0)
        out.flush()
        return Result(code, written.getvalue().decode(), err.getvalue())

    def output_of(self, *arguments: str, answers: tuple[str, ...] | None = None) -> str:
        ran = self.run_command(*arguments, answers=answers)
        self.assertEqual((ran.code, ran.err), (0, ""))
        return ran.out

    def refusal(self, *arguments: str) -> str:
        """The one line that a command which cannot be done leaves on stderr."""
        ran = self.run_command(*arguments)
        self.assertEqual((ran.code, ran.out), (2, ""), ran.err)
        self.assertRegex(ran.err, r"\Adeepseek-cursor-proxy: [^\n]+\n\Z")
        return ran.err.removeprefix("deepseek-cursor-proxy: ").rstrip("\n")

    def files(self) -> list[Path]:
        return [path for path in self.home.rglob("*") if path.is_file()]

    def configure(self, text: str) -> Path:
        path = self.home / ".deepseek-cursor-proxy" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path
