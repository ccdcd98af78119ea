"""A Python that is too old is told so in one line: the two files it reads first are written in its language."""

import ast
import io
import sys
import unittest
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

import deepseek_cursor_proxy
from deepseek_cursor_proxy import __main__, cli

PACKAGE = Path(deepseek_cursor_proxy.__file__).parent
# Nodes that mean the same in Python 2.7.
OLD = (
    *(ast.Module, ast.Expr, ast.Constant, ast.Import, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments),
    *(ast.arg, ast.If, ast.Return, ast.Assign, ast.Name, ast.Load, ast.Store, ast.Attribute, ast.Call, ast.Compare),
    *(ast.Tuple, ast.Subscript, ast.Slice, ast.BinOp, ast.Add, ast.Lt, ast.Eq, ast.Is, ast.IsNot),
)


def newer(source: str) -> list[str]:
    """What of a source an old Python cannot read."""
    found = [] if source.isascii() else ["a character that is not ASCII"]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, OLD):
            found.append(type(node).__name__)
        if isinstance(node, ast.FunctionDef) and (node.returns or node.args.kwonlyargs or node.args.posonlyargs):
            found.append(f"the signature of {node.name}")
        if isinstance(node, ast.arg) and node.annotation:
            found.append(f"the annotation of {node.arg}")
        if isinstance(node, ast.Name) and node.id == "print":
            found.append("print as a function")
    return found


class TestOldPython(unittest.TestCase):
    def test_what_it_reads_before_the_check_it_can_read(self) -> None:
        for name in ("__init__.py", "__main__.py"):
            self.assertEqual([], newer((PACKAGE / name).read_text(encoding="utf-8")), name)

    def test_newer_language_is_found(self) -> None:
        for source in ("x = f''", "x: int = 1", "def f() -> int: return 1", "def f(*, a): return a", "'→'", "print(1)"):
            self.assertTrue(newer(source), source)

    def test_nothing_of_ours_is_imported_before_the_check(self) -> None:
        for name in ("__init__.py", "__main__.py"):
            for node in ast.parse((PACKAGE / name).read_text(encoding="utf-8")).body:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    self.assertLessEqual({each.name for each in node.names}, {"gc", "sys", "signal"})

    def test_a_python_that_is_too_old_gets_one_line_and_exit_code_2(self) -> None:
        for version in ((2, 7, 18, "final", 0), (3, 6, 15, "final", 0), (3, 10, 13, "final", 0)):
            with (
                self.subTest(version),
                mock.patch.object(sys, "version_info", version),
                mock.patch.object(cli, "main") as run,
                redirect_stderr(io.StringIO()) as errors,
            ):
                self.assertEqual(2, __main__.main())
                run.assert_not_called()
                found = ".".join(map(str, version[:3]))
                self.assertRegex(errors.getvalue(), rf"\Adeepseek-cursor-proxy: needs Python 3\.11 .+ {found}; .+\n\Z")

    def test_one_that_runs_the_archive_reads_how_to_start_that(self) -> None:
        with (
            mock.patch.object(sys, "version_info", (3, 6, 15, "final", 0)),
            mock.patch.object(sys, "argv", ["./a.pyz"]),
            redirect_stderr(io.StringIO()) as errors,
        ):
            __main__.main()
        self.assertTrue(errors.getvalue().endswith("such as `python3.11 ./a.pyz`\n"))

    def test_one_that_is_new_enough_goes_on(self) -> None:
        for version in ((3, 11, 0, "alpha", 1), (3, 15, 0, "final", 0), (4, 0, 0, "final", 0)):
            with mock.patch.object(sys, "version_info", version), mock.patch.object(cli, "main", return_value=7):
                self.assertEqual(7, __main__.main())

    def test_the_oldest_is_the_one_the_package_asks_for(self) -> None:
        project = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn('requires-python = ">={}.{}"'.format(*__main__.OLDEST), project)
