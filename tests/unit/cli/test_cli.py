"""The command line in this process: what it prints, what it refuses, its exit codes. Serving is in test_serve."""

import contextlib
import hashlib
import io
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy import __version__, cli
from deepseek_cursor_proxy.cli import questions, serve
from deepseek_cursor_proxy.cli.commands import COMMANDS
from deepseek_cursor_proxy.cli.parser import build_parser, program_name, resolve
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS
from deepseek_cursor_proxy.storage import database
from deepseek_cursor_proxy.storage.answers import CachedAnswer, CachedAnswers
from deepseek_cursor_proxy.storage.private_files import InstallationSecret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.responses import ResponseStore, StoredResponse


class CommandTableTest(unittest.TestCase):
    def test_every_name_in_the_table_is_that_of_a_function(self) -> None:
        waiting = list(COMMANDS)
        while waiting:
            command = waiting.pop()
            named = [name for name in (command.run, command.add_flags, command.settings) if name is not None]
            self.assertEqual([], [name for name in named if not callable(resolve(name))])
            waiting += resolve(command.commands)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class CliTest(unittest.TestCase):
    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        # Nothing of the developer's own settings takes part.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DEEPSEEK_CURSOR_PROXY_")}
        ours |= {"HOME": str(self.home), "USERPROFILE": str(self.home), "COLUMNS": "100"}
        self.enterContext(mock.patch.dict(os.environ, ours, clear=True))
        # A line that should have been refused must not serve for ever.
        self.serving = self.enterContext(mock.patch.object(serve, "run", return_value=0))
        self.directory = self.home / ".deepseek-cursor-proxy"
        self.store = self.directory / "reasoning_content.sqlite3"

    def run_command(self, *arguments: str) -> Result:
        written, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(written, encoding="utf-8", newline="\n")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = cli.main(arguments)
            except SystemExit as end:  # how argparse ends after --help and --version
                self.assertIsInstance(end.code, int)
                code = int(end.code or 0)
        out.flush()
        return Result(code, written.getvalue().decode(), err.getvalue())

    def output_of(self, *arguments: str) -> str:
        ran = self.run_command(*arguments)
        self.assertEqual((ran.code, ran.err), (0, ""))
        return ran.out

    def refusal(self, *arguments: str) -> str:
        """The one line that a command which cannot be done leaves on stderr."""
        ran = self.run_command(*arguments)
        self.assertEqual((ran.code, ran.out), (2, ""), ran.err)
        self.assertRegex(ran.err, r"\Adeepseek-cursor-proxy: [^\n]+\n\Z")
        return ran.err.removeprefix("deepseek-cursor-proxy: ").rstrip("\n")

    def show(self, *arguments: str) -> dict[str, tuple[str, str]]:
        """What `config show` says: key, value, origin."""
        rows = {}
        for line in self.output_of("config", "show", *arguments).splitlines():
            assignment, _, origin = line.rpartition(" # ")
            key, _, value = assignment.partition(" = ")
            rows[key.strip()] = (value.strip(), origin)
        return rows

    def settings_file(self, text: str) -> str:
        path = self.home / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def fill_store(self, *texts: str) -> None:
        with contextlib.closing(ReasoningStore(self.store)) as store:
            store.record([([text.encode().ljust(32)], text) for text in texts])


class HelpTest(CliTest):
    def test_version_prints_the_version(self) -> None:
        self.assertEqual(self.output_of("--version"), f"deepseek-cursor-proxy {__version__}\n")

    def test_help_lists_all_commands(self) -> None:
        for flag in ("--help", "-h"):
            text = self.output_of(flag)
            for command in ("serve", "demo", "explain", "config", "access-key", "store"):
                self.assertRegex(text, rf"\n    {command}\s+\w")

    def test_serve_help_lists_every_setting(self) -> None:
        text, flags = self.output_of("serve", "--help"), [f"  {each.flag}" for each in SETTINGS]
        for flag in (*flags, "--config FILE", "--clear-reasoning-cache", "--no-ngrok"):
            self.assertIn(flag, text)

    def test_serve_help_groups_the_settings(self) -> None:
        text = self.output_of("serve", "--help")
        usage, *groups = text.split("\n\n")
        self.assertLess(len(usage.splitlines()), 4, "a list of all flags is no help")
        titles = [group.partition("\n")[0] for group in groups]
        self.assertGreater(len(titles), 6, titles)
        self.assertTrue(all(title.endswith(":") for title in titles), titles)
        for group in groups:
            self.assertLess(len(re.findall(r"(?m)^  --", group)), 16, group)

    def test_a_group_of_commands_alone_and_help_print_help(self) -> None:
        for group in ("config", "sessions", "store", "service"):
            self.assertEqual(self.output_of(group, "--help"), self.output_of(group))
        self.assertEqual(self.output_of("--help"), self.output_of("help"))
        self.assertEqual(self.output_of("store", "clear", "--help"), self.output_of("help", "store", "clear"))

    def test_a_command_takes_the_flags_that_its_help_lists_and_no_others(self) -> None:
        lists_all = ("serve", "config show", "service install")
        leaves = [f"{group.name} {each.name}" for group in COMMANDS for each in resolve(group.commands)]
        for line in [each.name for each in COMMANDS if each.run is not None] + leaves:
            with self.subTest(line):
                text = self.output_of(*line.split(), "--help")
                self.assertEqual(line in lists_all, "--reasoning-effort" in text)
                listed = set(re.findall(r"(?m)(?:^  |, )(-[a-z-]+)", text))
                parser = build_parser(line.split()[0], COMMANDS)
                for word in line.split():
                    parser = next(each.choices[word] for each in parser._actions if isinstance(each.choices, dict))
                self.assertEqual(set(parser._option_string_actions), listed)

    def test_help_after_a_flag_is_the_help_of_serve(self) -> None:
        self.assertIn("--reasoning-effort", self.output_of("--verbose", "--help"))

    def test_help_version_and_config_create_no_file(self) -> None:
        for line in (["--version"], ["--help"], ["config", "show"], ["config", "path"], ["serve", "--help"]):
            self.run_command(*line)
        self.assertEqual(list(self.home.iterdir()), [])


class ConfigCommandTest(CliTest):
    def test_config_show_has_a_line_for_every_setting(self) -> None:
        self.assertEqual(list(self.show()), [each.key for each in DECLARATIONS if each.key != "ngrok"])
        self.assertIn("ngrok", self.show("--ngrok"))
        self.assertEqual({origin for _, origin in self.show().values()}, {"default"})

    def test_config_show_prints_the_origin_of_each_value(self) -> None:
        file = self.settings_file('model = "of the file"\nport = 1\nhost = "of the file"\n')
        environment = {"DEEPSEEK_CURSOR_PROXY_PORT": "2", "DEEPSEEK_CURSOR_PROXY_HOST": "of the environment"}
        with mock.patch.dict(os.environ, environment):
            shown = self.show("--config", file, "--port", "3", "--no-display-reasoning", "--cors")
        self.assertEqual(shown["model"], ('"of the file"', file))
        self.assertEqual(shown["host"], ('"of the environment"', "environment DEEPSEEK_CURSOR_PROXY_HOST"))
        self.assertEqual(shown["port"], ("3", "flag --port"))
        self.assertEqual(shown["display_reasoning"], ('"off"', "flag --display-reasoning"))
        self.assertEqual(shown["cors"], ("true", "flag --cors"))
        self.assertEqual(shown["thinking"], ('"enabled"', "default"))

    def test_a_switch_is_a_flag_with_a_value_without_one_or_with_no_in_front(self) -> None:
        for line, expected in (
            ((), "auto"),
            (("--display-reasoning",), "on"),
            (("--display-reasoning", "--cors"), "on"),
            (("--no-display-reasoning",), "off"),
            (("--display-reasoning", "auto"), "auto"),
            (("--display-reasoning=off",), "off"),
            (("--display-reasoning", "true"), "on"),
            (("--no-display-reasoning", "--display-reasoning"), "on"),
        ):
            self.assertEqual(f'"{expected}"', self.show(*line)["display_reasoning"][0], line)
        self.assertIn("is not one of auto, on, off", self.refusal("config", "show", "--display-reasoning", "maybe"))

    def test_config_show_reads_the_file_in_the_home_directory(self) -> None:
        self.directory.mkdir()
        (self.directory / "config.toml").write_text("port = 1")
        value, origin = self.show()["port"]
        self.assertEqual((value, Path(origin)), ("1", Path("~/.deepseek-cursor-proxy/config.toml")))

    def test_config_path_prints_the_file_in_use(self) -> None:
        self.assertEqual(self.output_of("config", "path"), f"{self.directory / 'config.toml'}\n")
        self.assertEqual(self.output_of("config", "path", "--config", "~/x.toml"), f"{self.home / 'x.toml'}\n")


class AccessKeyTest(CliTest):
    def piped(self, text: str, *arguments: str) -> Result:
        with mock.patch("sys.stdin", io.StringIO(text)):
            return self.run_command("access-key", *arguments)

    def test_access_key_prints_the_sha256_digest_of_a_piped_key(self) -> None:
        for text in (f"{KEY}\n", KEY, f"  {KEY}  \r\nanother line"):
            digest = hashlib.sha256(KEY.encode()).hexdigest()
            self.assertEqual(self.piped(text), Result(0, f"sha256:{digest}\n", ""))

    def test_access_key_reads_a_typed_key_without_echo(self) -> None:
        self.enterContext(mock.patch("deepseek_cursor_proxy.cli.questions.can_ask", return_value=True))
        with mock.patch("getpass.getpass", return_value=KEY) as ask:
            self.assertEqual(self.output_of("access-key"), f"{AccessKey.of(KEY).line}\n")
        ask.assert_called_once_with("Key: ")

    def test_access_key_refuses_a_bad_key_without_repeating_it(self) -> None:
        for text in ("", "\n", "sk-two words\n", "sk-é\n", "sk-\x00\n"):
            ran = self.piped(text)
            self.assertEqual((ran.code, ran.out), (2, ""))
            self.assertIn("that is not a key", ran.err)
            self.assertNotIn("sk-", ran.err)

    def test_access_key_warns_about_a_short_key(self) -> None:
        ran = self.piped("sk-short")
        self.assertEqual((ran.code, ran.out), (0, f"{AccessKey.of('sk-short').line}\n"))
        self.assertIn("short enough to guess", ran.err)

    def test_access_key_new_prints_a_different_key_and_its_digest_each_time(self) -> None:
        seen = set()
        for _ in range(3):
            key, digest = (line.split()[0] for line in self.output_of("access-key", "--new").splitlines())
            self.assertRegex(key, r"^sk-[A-Za-z0-9_-]{43}$")
            self.assertEqual(digest, AccessKey.of(key).line)
            seen.add(key)
        self.assertEqual(len(seen), 3)

    def test_access_key_new_with_a_name_writes_its_table_and_prints_the_key_once(self) -> None:
        path = Path(self.settings_file("port = 1\n"))
        limits = ("--usd-per-day", "5", "--warn-at", "0.8", "--models", "deepseek-flash, gpt-*", "--note", "laptop")
        out = self.output_of("access-key", "--new", "ann", "--config", str(path), *limits)
        key, written = out.split()[0], path.parent / "keys.d" / "ann.toml"
        expected = f'[keys.ann]\nkey = "{AccessKey.of(key).line}"\nmodels = ["deepseek-flash", "gpt-*"]\n'
        self.assertEqual(
            f'{expected}usd_per_day = 5\nwarn_at = 0.8\nnote = "laptop"\n', written.read_text(encoding="utf-8")
        )
        if os.name == "posix":
            self.assertEqual(0o600, written.stat().st_mode & 0o777)
        self.assertIn("usd_per_day = 5.0", self.show("--config", str(path))["keys"][0])
        again = self.run_command("access-key", "--new", "ann", "--config", str(path))
        self.assertEqual(2, again.code)
        self.assertIn("to rotate the key", again.err)

    def test_access_key_refuses_bad_limits_and_limits_without_a_name(self) -> None:
        for arguments, words in (
            (("--new", "ann", "--usd-per-day", "five"), 'keys.ann.usd_per_day = "five" is not an amount'),
            (("--new", "--usd-per-day", "5"), "limits are for a named key"),
            (("--new", "a/b"), "is not a name of letters"),
        ):
            ran = self.run_command("access-key", *arguments)
            self.assertEqual((2, ""), (ran.code, ran.out))
            self.assertIn(words, ran.err)

    def test_config_show_prints_shortened_digests_of_access_keys(self) -> None:
        value, origin = self.show("--access-keys", f"{KEY},sk-another-of-the-keys")["access_keys"]
        self.assertRegex(value, r'^\["sha256:[0-9a-f]{12}…", "sha256:[0-9a-f]{12}…"\]$')
        self.assertEqual(origin, "flag --access-keys")

    def test_config_show_hides_the_texts_of_raw_options(self) -> None:
        for text, name, shown in (
            ('[host_options]\nx = {token = "t0ken", on = true}\n', "host_options", '{x = {token = "…", on = true}}'),
            ('[upstreams.a]\nbase_url = "https://a.example"\noptions = {x = "t0ken"}\n', "upstreams", '{x = "…"}'),
        ):
            path = self.settings_file(text)
            self.assertIn(shown, self.show("--config", path)[name][0])
            self.assertNotIn("t0ken", self.output_of("config", "show", "--config", path))

    def test_a_key_behind_a_misspelt_flag_is_not_repeated(self) -> None:
        for line in (["--acess-keys", KEY], [f"--acess-keys={KEY}"], [KEY], ["--acess-keys", AccessKey.of(KEY).line]):
            refusal = self.refusal(*line)
            self.assertNotIn(KEY[3:], refusal)
            self.assertNotIn(AccessKey.of(KEY).digest.hex(), refusal)


KEY = "sk-some-key-of-a-client"


class StoreCommandTest(CliTest):
    def test_commands_that_look_at_something_create_nothing(self) -> None:
        self.enterContext(mock.patch.object(questions, "can_ask", return_value=False))
        os.environ["DEEPSEEK_CURSOR_PROXY_BASE_URL"] = "http://127.0.0.1:9"
        for line in (
            *(
                "store stats",
                "store secret",
                "store clear --yes",
                "sessions list",
                "sessions show 1",
                "sessions export",
            ),
            *("usage", "usage --csv", "config show", "setup", "setup codex --print", "doctor", "dashboard", "balance"),
            *("service status", "service uninstall", "service install --print", "explain absent.json"),
        ):
            with self.subTest(line):
                self.run_command(*line.split())
                self.assertEqual([], list(self.home.iterdir()))

    def test_nothing_to_show_is_no_failure_and_what_is_named_must_be_there(self) -> None:
        for line in ("store stats", "store clear --yes", "sessions list", "usage", "usage --json"):
            with self.subTest(line):
                self.output_of(*line.split())
        self.assertEqual(
            Result(0, "", "deepseek-cursor-proxy: trajectories written: 0\n"), self.run_command("sessions", "export")
        )
        self.assertIn("No sessions yet", self.output_of("sessions", "list"))
        for line in ("sessions show 12ab", "sessions export 12ab"):
            self.assertIn("no session begins with 12ab", self.refusal(*line.split()))

    def test_store_stats_of_an_empty_store(self) -> None:
        lines = [line.split(maxsplit=1) for line in self.output_of("store", "stats").splitlines()]
        names = ["store", "reasonings", "lookup", "text", "oldest", "responses", "cache", "cache"]
        self.assertEqual([name for name, _ in lines], names)
        self.assertIn(["reasonings", "0 (of at most 100,000)"], lines)
        self.assertIn(["oldest", "use   -"], lines)

    def test_store_stats_counts_the_reasonings(self) -> None:
        self.fill_store("one", "three", "fourteen")
        text = self.output_of("store", "stats", "--config", self.settings_file("reasoning_cache_max_rows = 7000"))
        self.assertRegex(
            text, r"reasonings +3 \(of at most 7,000\)\nlookup keys +3 .*\ntext +16 bytes\noldest use +20\d\d-"
        )

    def test_store_secret_prints_what_other_proxies_need(self) -> None:
        new = self.run_command("store", "secret")
        self.assertRegex(new.out, r"^[0-9a-f]{64}\n$")
        self.assertIn("this is a new one", new.err)
        secret = InstallationSecret(self.store).read()
        self.assertEqual(f"{secret.hex()}\n", self.output_of("store", "secret"))

    def test_store_clear_deletes_everything_and_prints_how_much(self) -> None:
        self.fill_store("one", "two")
        for count in (2, 0):
            self.assertEqual(self.output_of("store", "clear", "--yes"), f"Cleared {count} stored reasonings.\n")

    def test_store_clear_asks_and_a_no_deletes_nothing(self) -> None:
        self.fill_store("one", "two")
        with mock.patch.object(questions, "can_ask", return_value=True), mock.patch("builtins.input") as typed:
            typed.return_value = "n"
            ran = self.run_command("store", "clear")
            self.assertEqual(1, ran.code)
            self.assertRegex(ran.out, r"Delete 2 reasonings and 0 responses in .+\? \[y/N\] Nothing was changed.\n$")
            typed.return_value = "y"
            self.assertTrue(self.output_of("store", "clear").endswith("Cleared 2 stored reasonings.\n"))

    def test_store_clear_without_a_terminal_wants_yes(self) -> None:
        self.fill_store("one")
        with mock.patch.object(questions, "can_ask", return_value=False):
            self.assertIn("add --yes", self.refusal("store", "clear"))
        self.assertRegex(self.output_of("store", "stats"), r"reasonings +1 ")

    def test_store_stats_and_clear_include_responses(self) -> None:
        self.fill_store("one")
        with contextlib.closing(ReasoningStore(self.store)) as store:
            with contextlib.closing(ResponseStore(store.database)) as responses:
                for name in ("a", "b"):
                    responses.put(bytes(32), StoredResponse({"id": name, "status": "completed"}, []))
        self.assertRegex(self.output_of("store", "stats"), r"responses    2, \d+ bytes\n")
        self.assertEqual(self.output_of("store", "clear", "--yes"), "Cleared 1 stored reasonings and 2 responses.\n")
        self.assertRegex(self.output_of("store", "stats"), r"responses    0, 0 bytes\n")

    def test_store_stats_and_clear_include_the_response_cache(self) -> None:
        self.fill_store("one")
        with contextlib.closing(ReasoningStore(self.store)) as store:
            with contextlib.closing(CachedAnswers(store.database)) as answers:
                answer = CachedAnswer(b"packed", 1200, 0.25, "USD")
                answers.record(b"1", answer)
                for _ in range(3):
                    answers.count_hit(answer)
                answers.count_miss()
        use = "cache use    3 hits, 1 misses; 3,600 tokens, $0.750 saved\n"
        self.assertIn(f"cache        1 answers, 206 bytes\n{use}", self.output_of("store", "stats"))
        self.assertEqual(
            self.output_of("store", "clear", "--yes"), "Cleared 1 stored reasonings and 1 cached answers.\n"
        )
        self.assertIn(f"cache        0 answers, 0 bytes\n{use}", self.output_of("store", "stats"))

    def test_store_commands_use_the_store_of_the_flag(self) -> None:
        self.fill_store("one")
        text = self.output_of("store", "stats", "--reasoning-content-path", "~/other.sqlite3")
        self.assertRegex(text, r"reasonings +0 ")
        self.assertIn(str(self.home / "other.sqlite3"), text)

    def test_a_directory_as_the_store_is_refused_in_one_line(self) -> None:
        self.assertIn("--reasoning-content-path", self.refusal("store", "stats", "--reasoning-content-path", "~"))

    def test_a_file_that_is_no_store_is_refused_in_one_line_and_left_alone(self) -> None:
        (self.home / "letter").write_text("Dear reader, " * 100)
        line = self.refusal("store", "clear", "--reasoning-content-path", "~/letter")
        self.assertIn(str(self.home / "letter"), line)
        self.assertTrue((self.home / "letter").read_text().startswith("Dear reader, "))

    def test_a_damaged_store_is_refused_in_one_line_and_not_moved(self) -> None:
        self.fill_store("one")
        damaged = bytearray(self.store.read_bytes())
        damaged[100:4096] = bytes(3996)
        for head in (bytes(4096), bytes(damaged[:4096])):
            self.store.write_bytes(head + damaged[4096:])
            for command in ("stats", "clear"):
                with self.subTest(command):
                    line = self.refusal("store", command)
                    self.assertRegex(line, "^cannot use .+: it is damaged .+; .+ move it away")
                    self.assertEqual([self.store], list(self.directory.iterdir()))

    def test_store_clear_on_a_locked_store_is_refused_in_one_line(self) -> None:
        self.fill_store("one")
        self.enterContext(mock.patch.object(database, "_BUSY_SECONDS", 0.01))
        with contextlib.closing(sqlite3.connect(self.store, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            line = self.refusal("store", "clear", "--yes")
        self.assertRegex(line, "^cannot use .+: another process holds it locked; stop that process if it does not end")
        self.assertEqual(self.output_of("store", "clear", "--yes"), "Cleared 1 stored reasonings.\n")


class RefusalTest(CliTest):
    def test_an_unknown_flag_is_refused_with_the_nearest_flag_and_the_help_command(self) -> None:
        for line, near, command in (
            (["--prot", "1"], "--port", "serve"),
            (["--ngork"], "--ngrok", "serve"),
            (["serve", "--no-ngork"], "--no-ngrok", "serve"),
            (["--modle=x"], "--model", "serve"),
            (["--acess-keys", KEY], "--access-keys", "serve"),
            (["store", "stats", "--config-file=x"], "--config", "store stats"),
            (["access-key", "--neww"], "--new", "access-key"),
        ):
            with self.subTest(line):
                end = f"; did you mean {near}? `deepseek-cursor-proxy {command} --help` lists what is available"
                self.assertTrue(self.refusal(*line).endswith(end), self.refusal(*line))
                self.assertIn(f" {near}", self.output_of(*command.split(), "--help"))

    @unittest.skipIf(os.name == "nt", "paths of POSIX")
    def test_a_hint_repeats_the_command_that_started_the_program(self) -> None:
        """In a checkout there is no command of the program's own name."""
        for started, program in (
            ("/home/me/deepseek_cursor_proxy/__main__.py", "py9 -m deepseek_cursor_proxy"),
            ("/usr/lib/site-packages/deepseek_cursor_proxy/__main__.py", "py9 -m deepseek_cursor_proxy"),
            ("/my src/deepseek_cursor_proxy/__main__.py", "PYTHONPATH='/my src' py9 -m deepseek_cursor_proxy"),
            ("/usr/lib/python3/pytest/__main__.py", "deepseek-cursor-proxy"),
            ("/tmp/deepseek-cursor-proxy.pyz", "py9 /tmp/deepseek-cursor-proxy.pyz"),
            ("", "deepseek-cursor-proxy"),
        ):
            with (
                self.subTest(started),
                mock.patch.object(sys, "argv", [started]),
                mock.patch.object(sys, "orig_argv", ["py9"]),
                mock.patch.object(sys, "path", ["/home/me", *sys.path]),
            ):
                self.assertIn(f"`{program} serve --help`", self.refusal("--bogus"))
                self.assertTrue(self.output_of("--help").startswith(f"usage: {program} "))

    @unittest.skipIf(os.name == "nt", "paths of POSIX")
    def test_a_script_that_the_shell_does_not_find_is_named_by_its_path(self) -> None:
        script = self.home / "deepseek-cursor-proxy"
        script.touch(0o700)
        with mock.patch.object(sys, "argv", [str(script)]):
            with mock.patch.dict(os.environ, PATH="/nowhere"):
                self.assertIn(f"`{script} serve --help`", self.refusal("--bogus"))
            with mock.patch.dict(os.environ, PATH=str(self.home)):
                self.assertIn("`deepseek-cursor-proxy serve --help`", self.refusal("--bogus"))

    @unittest.skipIf(os.name == "nt", "paths of POSIX")
    def test_a_hint_names_python_as_short_as_the_shell_finds_it(self) -> None:
        """A checkout or an archive runs with any Python of this version, an installed package with its own alone."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        archive, package = "/x/deepseek-cursor-proxy.pyz", "/x/venv/lib/site-packages/deepseek_cursor_proxy/__main__.py"
        for started, typed, found, name in (
            (archive, "/usr/bin/py9", "py9", "py9"),
            (archive, "./venv/bin/python", "python", sys.executable),
            (archive, "./venv/bin/python", version, version),
            ("/home/me/deepseek_cursor_proxy/__main__.py", "./venv/bin/python", version, version),
            (package, "./venv/bin/python", version, sys.executable),
        ):
            with (
                self.subTest(started, typed=typed, found=found),
                mock.patch.object(sys, "argv", [started]),
                mock.patch.object(sys, "orig_argv", [typed]),
                mock.patch.object(sys, "path", ["/home/me", *sys.path]),
                mock.patch("shutil.which", {found: f"/usr/bin/{found}"}.get),
            ):
                self.assertEqual(name, program_name().split()[0])

    @unittest.skipIf(os.name == "nt", "paths of POSIX")
    def test_a_hint_for_another_terminal_leads_to_the_checkout(self) -> None:
        with (
            mock.patch.object(sys, "argv", ["/home/me/deepseek_cursor_proxy/__main__.py"]),
            mock.patch.object(sys, "orig_argv", ["py9"]),
            mock.patch.object(sys, "path", ["/home/me", *sys.path]),
        ):
            self.assertEqual("cd /home/me && py9 -m deepseek_cursor_proxy", program_name(anywhere=True))

    def test_an_unknown_flag_like_no_other_gets_a_hint_and_no_suggestion(self) -> None:
        flags = (["--bogus"], ["--zzz=1"], ["-v"], ["serve", "--bogus"], ["config", "show", "--bogus"])
        for line in (*flags, ["serve", "word"], ["demo", "--port", "1"]):
            with self.subTest(line):
                refusal = self.refusal(*line)
                self.assertRegex(refusal, "unrecognized arguments: .+ --help` lists what is available$")
                self.assertNotIn("did you mean", refusal)

    def test_a_command_after_flags_is_refused_with_the_right_order(self) -> None:
        for line in (["--model", "x", "config", "show"], ["serve", "--ngrok", "config", "path"]):
            with self.subTest(line):
                right = "; a command comes before its flags, as in `deepseek-cursor-proxy config …`; "
                self.assertIn(right, self.refusal(*line))

    def test_a_command_with_too_few_or_too_many_arguments_is_refused_in_one_line(self) -> None:
        for line in (["bogus"], ["store", "bogus"], ["--port"], ["--ngrok=5"], ["--", "x"]):
            with self.subTest(line):
                self.assertIn("--help`", self.refusal(*line))

    def test_an_abbreviated_flag_is_refused(self) -> None:
        """An abbreviation that works today would become ambiguous with the next setting."""
        for command in ([], ["serve"], ["config", "show"], ["config", "path"], ["store", "stats"], ["store", "clear"]):
            for flag in ("--por", "--hos=x", "--verb", "--no-ngr", "--conf"):
                with self.subTest(command, flag=flag):
                    self.assertIn("unrecognized arguments", self.refusal(*command, flag))
        for flag in ("--vers", "--clear-reasoning"):
            self.assertIn("unrecognized arguments", self.refusal(flag))

    def test_a_bad_value_is_refused_in_one_line_by_every_command(self) -> None:
        for command in ([], ["serve"], ["config", "show"], ["service", "install"]):
            with self.subTest(command):
                line = self.refusal(*command, "--port", "abc")
                self.assertEqual(line, 'config: port = "abc" is not a whole number (flag --port)')

    def test_odd_characters_in_a_bad_value_are_refused_in_one_line(self) -> None:
        for flag, value in (
            ("--port", "1\n2"),
            ("--port", "\x1b[2J"),
            ("--port", "\udcff"),
            ("--port", "9" * 5000),
            ("--thinking", "x" * 5000),
            ("--base-url", "http://[::1"),
            ("--host", "a\nb"),
            ("--request-timeout", "nan"),
        ):
            with self.subTest(flag, value=value[:10]):
                line = self.refusal("config", "show", flag, value)
                self.assertTrue(line.startswith(f"config: {flag[2:].replace('-', '_')} = "), line)
                self.assertTrue(line.endswith(f"(flag {flag})"), line)

    def test_a_bad_value_of_the_environment_names_the_variable(self) -> None:
        with mock.patch.dict(os.environ, {"DEEPSEEK_CURSOR_PROXY_THINKING": "perhaps"}):
            line = self.refusal("config", "show")
        self.assertIn('thinking = "perhaps" is not one of enabled, disabled', line)
        self.assertIn("environment DEEPSEEK_CURSOR_PROXY_THINKING", line)

    def test_a_configuration_file_that_does_not_exist_is_refused_in_one_line(self) -> None:
        for command in ([], ["config", "show"], ["store", "stats"]):
            with self.subTest(command):
                line = self.refusal(*command, "--config", "~/absent.toml")
                self.assertRegex(line, r"^config: .*absent\.toml does not exist; create it, or leave --config out")
        self.assertEqual(list(self.home.iterdir()), [])

    def test_a_configuration_file_that_cannot_be_read_is_refused_in_one_line(self) -> None:
        for path in (str(self.home), "", "x" * 5000):
            with self.subTest(path[:20]):
                line = self.refusal("config", "show", "--config", path)
                self.assertRegex(line, "^config: (cannot read .+; fix it|.+ does not exist; write it)")

    @unittest.skipIf(os.name == "nt", "Windows invents a home for everybody")
    def test_a_home_that_does_not_exist_is_refused_in_one_line(self) -> None:
        for line in (["config", "show"], ["config", "path"], []):
            with self.subTest(line):
                self.assertIn("write the whole path", self.refusal(*line, "--config", "~no-such-user/x.toml"))

    def models_file(self, target: str) -> str:
        return self.settings_file(f'[models]\n"gpt-5.6*" = "{target}"')

    def test_a_models_entry_for_an_unknown_model_is_refused_with_the_nearest(self) -> None:
        for target, hint in (
            ("deepseek-v4-prp", 'did you mean "deepseek-v4-pro"?'),
            ("DeepSeek-Flahs", 'did you mean "deepseek-flash"?'),
            ("gpt-4o", "is known to have. It has deepseek-v4-pro, deepseek-flash. For one newer"),
        ):
            for command in ([], ["config", "show"]):
                line = self.refusal(*command, "--config", self.models_file(target))
                self.assertTrue(line.startswith(f'config: models."gpt-5.6*" = "{target}" is no model'), line)
                self.assertIn(hint, line)
                self.assertIn("mine.toml", line)

    def test_a_models_entry_may_name_a_known_model_or_the_configured_one(self) -> None:
        for target in ("deepseek-v4-pro", "DeepSeek-Flash", "deepseek-v4-pro-nothink", "deepseek-v4-flash:max"):
            self.show("--config", self.models_file(target))
        self.show("--config", self.models_file("deepseek-v9"), "--model", "deepseek-v9")

    def test_a_model_for_subagents_that_deepseek_does_not_have_is_refused_with_the_nearest(self) -> None:
        self.assertIn('did you mean "deepseek-flash"?', self.refusal("--subagent-model", "deepsek-flash"))
        self.assertEqual('"deepseek-flash"', self.show("--subagent-model", "deepseek-flash")["subagent_model"][0])

    def test_a_models_entry_may_name_any_model_of_another_host(self) -> None:
        for url in ("https://openrouter.ai/api/v1", "https://notdeepseek.com", "http://127.0.0.1:1"):
            self.show("--config", self.models_file("vendor/deepseek-v4"), "--base-url", url)
        self.refusal("--config", self.models_file("vendor/deepseek-v4"), "--base-url", "https://api.deepseek.com/beta")

    @unittest.skipIf(os.name == "nt", "Windows invents a home for everybody")
    def test_config_show_works_without_a_home_directory(self) -> None:
        del os.environ["HOME"]
        with mock.patch("pwd.getpwuid", side_effect=KeyError("no such user")):
            self.assertEqual(self.show()["port"], ("9000", "default"))
            for line in (["config", "path"], ["store", "stats"], ["store", "clear"]):
                self.assertIn("in a home directory that does not exist", self.refusal(*line))
            for line in (["setup"], ["setup", "codex", "--yes"], ["service", "status"]):
                self.assertEqual("there is no home directory for this user; set HOME", self.refusal(*line))

    def test_an_unknown_key_in_the_file_is_refused_with_the_nearest(self) -> None:
        file = self.settings_file("prot = 1")
        line = self.refusal("config", "show", "--config", file)
        self.assertEqual(line, f'config: unknown key "prot" ({file}); did you mean "port"?')


class EndingTest(CliTest):
    def test_ctrl_c_exits_with_130(self) -> None:
        self.serving.side_effect = KeyboardInterrupt
        self.assertEqual(self.run_command(), Result(130, "", ""))

    @unittest.skipIf(os.name == "nt", "Windows has another word for it")
    def test_a_closed_output_pipe_is_no_failure(self) -> None:
        """`config show | head -1`, and no complaint when Python flushes at its end."""
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w", encoding="utf-8") as pipe, contextlib.redirect_stdout(pipe):
            self.assertEqual(cli.main(["config", "show"]), 0)

    def test_a_character_that_the_terminal_lacks_is_printed_as_a_question_mark(self) -> None:
        shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
        with mock.patch.object(shown, "isatty", return_value=True), contextlib.redirect_stdout(shown):
            self.assertEqual(cli.main(["config", "show", "--model", "modèle"]), 0)
            shown.flush()
        self.assertIn(b'"mod?le"', shown.buffer.getvalue())

    @unittest.skipIf(os.name == "nt", "needs a shell")
    def test_commands_work_without_stdout_and_stderr(self) -> None:
        """Windows' pythonw runs programs so."""
        script = 'exec "$@" >&- 2>&-'
        command = [sys.executable, "-m", "deepseek_cursor_proxy", "config", "show"]
        self.assertEqual(0, subprocess.run(["/bin/sh", "-c", script, "sh", *command], timeout=60).returncode)

    def test_flags_without_a_command_mean_serve(self) -> None:
        for line in ([], ["--port", "0"], ["serve", "--port", "0"]):
            with self.subTest(line):
                self.assertEqual(self.run_command(*line), Result(0, "", ""))
                self.assertEqual(self.serving.call_args.args[0].config.port, 0 if line else 9000)
                self.assertFalse(self.serving.call_args.kwargs["clear_store"])
