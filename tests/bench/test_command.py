"""The flags of `python -m tests.bench` and `python -m tests.soak`."""

import contextlib
import io
import unittest
from unittest import mock

from tests import bench
from tests.bench import __main__ as bench_command
from tests.bench.others import OtherCommand
from tests.soak import __main__ as soak_command


def refusal(command: object, *flags: str) -> str:
    """What is printed on flags that are refused."""
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.suppress(SystemExit):
        command.main(flags)  # type: ignore[attr-defined]
        raise AssertionError(f"{flags} were accepted")
    return " ".join(errors.getvalue().split())


class BenchCommandTest(unittest.TestCase):
    def options(self, *flags: str) -> bench.Options:
        """What the command makes of its flags."""
        with mock.patch("tests.bench.run", return_value=1) as run:
            self.assertEqual(1, bench_command.main(flags))
        [options] = run.call_args.args
        assert isinstance(options, bench.Options)
        return options

    def test_only_this_proxy_is_measured_by_default(self) -> None:
        self.assertEqual(self.options(), bench.Options())
        self.assertEqual(self.options("--quick", "--json"), bench.Options(quick=True, as_json=True))

    def test_against_takes_names_with_urls(self) -> None:
        others = ("--against", "a=http://127.0.0.1:1", "--against", "b=http://localhost:2/v1?x=y")
        expected = (("a", "http://127.0.0.1:1"), ("b", "http://localhost:2/v1?x=y"))
        options = self.options("--upstream-port", "8001", *others)
        self.assertEqual(options, bench.Options(others=expected, upstream_port=8001))

    def test_a_command_has_places_for_the_port_and_for_deepseek(self) -> None:
        options = self.options("--command", "a b=run --port {port} --up {upstream}")
        self.assertEqual((OtherCommand("a b", "run --port {port} --up {upstream}"),), options.commands)
        self.assertIn("is not NAME=COMMAND", refusal(bench_command, "--command", "a=run --up {upstream}"))
        twice = ("--command", "a=x {port} {upstream}") * 2
        self.assertIn("two columns have the same name", refusal(bench_command, *twice))

    def test_against_refuses_a_bad_value_with_an_example(self) -> None:
        one = "http://127.0.0.1:1"
        for text in (one, "a", "a=", f"={one}", "a=https://h:1", "a=http://", "a=http://h:x"):
            with self.subTest(text):
                words = f"'{text}' is not NAME=URL, such as other=http://127.0.0.1:9001"
                self.assertIn(words, refusal(bench_command, "--upstream-port=1", f"--against={text}"))

    def test_against_needs_an_upstream_port(self) -> None:
        self.assertIn("--against needs --upstream-port N", refusal(bench_command, "--against=a=http://127.0.0.1:1"))
        for port in ("0", "65536", "any"):
            self.assertIn(f"'{port}' is no port", refusal(bench_command, f"--upstream-port={port}"))

    def test_two_columns_of_the_same_name_are_refused(self) -> None:
        for names in (("a", "a"), ("direct",), ("this proxy",)):
            others = [f"--against={name}=http://127.0.0.1:{port}" for port, name in enumerate(names, 1)]
            self.assertIn("the same name", refusal(bench_command, "--upstream-port=1", *others), names)


class SoakCommandTest(unittest.TestCase):
    def test_a_soak_takes_minutes_and_quick(self) -> None:
        with mock.patch("tests.soak.run", return_value=1) as run:
            self.assertEqual(1, soak_command.main(["0.5", "--quick"]))
        run.assert_called_once_with(0.5, quick=True)

    def test_a_bad_number_of_minutes_is_refused(self) -> None:
        for minutes in ("0", "nan", "inf", "long"):
            with self.subTest(minutes):
                self.assertIn(f"'{minutes}' is no number of minutes", refusal(soak_command, minutes))
