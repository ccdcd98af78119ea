import io
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from deepseek_cursor_proxy.cli import questions


class TestQuestions(unittest.TestCase):
    def test_a_closed_or_absent_input_has_no_person_at_it(self) -> None:
        closed = io.StringIO()
        closed.close()
        for stdin in (None, closed, io.StringIO("y\n")):
            with self.subTest(stdin), mock.patch.object(sys, "stdin", stdin):
                self.assertFalse(questions.can_ask())
                self.assertFalse(questions.is_agreed("Well?"))
                self.assertEqual("", questions.ask_secret("Key: "))

    def test_the_null_device_of_windows_says_that_it_is_a_terminal_and_is_none(self) -> None:
        null = SimpleNamespace(isatty=lambda: True, fileno=lambda: 0)
        with mock.patch.object(sys, "stdin", null), mock.patch.object(sys, "platform", "win32"):
            for is_console in (True, False):
                with mock.patch.object(questions, "_is_console", return_value=is_console):
                    self.assertIs(is_console, questions.can_ask())

    def test_only_a_yes_agrees(self) -> None:
        answers = {"y": True, " YES ": True, "": False, "n": False, "yy": False}
        with mock.patch.object(questions, "can_ask", return_value=True), mock.patch("builtins.print"):
            for answer, is_agreed in answers.items():
                with self.subTest(answer), mock.patch("builtins.input", return_value=answer):
                    self.assertIs(is_agreed, questions.is_agreed("Well?"))

    def test_the_end_of_the_input_is_a_no_and_no_secret(self) -> None:
        with mock.patch.object(questions, "can_ask", return_value=True), mock.patch("builtins.print"):
            for error in (EOFError(), OSError(5, "Input/output error"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")):
                with self.subTest(error), mock.patch("builtins.input", side_effect=error):
                    self.assertFalse(questions.is_agreed("Well?"))
                with mock.patch("getpass.getpass", side_effect=error):
                    self.assertEqual("", questions.ask_secret("Key: "))

    def test_a_secret_is_read_from_a_pipe_where_nobody_types(self) -> None:
        for text, secret in (("sk-piped \nsecond\n", "sk-piped"), ("", "")):
            with mock.patch.object(sys, "stdin", io.StringIO(text)):
                self.assertEqual(secret, questions.read_secret("Key: "))
