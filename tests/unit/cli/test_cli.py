import contextlib
import hashlib
import io
import os
import re
import sqlite3
import sys
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy import __version__, cli
from deepseek_cursor_proxy.cli import serve
from deepseek_cursor_proxy.cli.commands import COMMANDS
from deepseek_cursor_proxy.cli.parser import build_parser, program_name, resolve
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS
from deepseek_cursor_proxy.features.response_cache.store import CachedAnswer, CachedAnswers
from deepseek_cursor_proxy.features.responses.store import ResponseStore, StoredResponse
from deepseek_cursor_proxy.storage import database
from deepseek_cursor_proxy.storage.private_files import InstallationSecret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.commands import CommandTestCase, Result

KEY = "sk-some-key-of-a-client"
# Every command that does something, as it is typed.
LEAVES = [each.name for each in COMMANDS if each.run is not None]
LEAVES += [f"{group.name} {each.name}" for group in COMMANDS for each in resolve(group.commands)]

# Flag and value, what `config show` says about the setting.
SWITCHES = (
    ("", '"auto"'), ("--display-reasoning", '"on"'), ("--display-reasoning --cors", '"on"'),
    ("--no-display-reasoning", '"off"'), ("--display-reasoning auto", '"auto"'), ("--display-reasoning=off", '"off"'),
    ("--display-reasoning true", '"on"'), ("--no-display-reasoning --display-reasoning", '"on"'),
)  # fmt: skip
NEAR = r"; did you mean {0}\? `deepseek-cursor-proxy {1} --help(-all)?` lists what is available$"
NO_NEAR = "^unrecognized arguments: (?!.*did you mean).+ --help(-all)?` lists what is available$"
RIGHT_ORDER = "; a command comes before its flags, as in `deepseek-cursor-proxy config …`; "
NO_FILE = r"^config: .*absent\.toml does not exist; create it, or leave --config out"
NO_NUMBER = r'^config: port = "abc" is not a whole number \(flag --port\)$'
# A command, and the line that refuses it.
REFUSED: tuple[tuple[str, str], ...] = (
    ("--prot 1", NEAR.format("--port", "serve")),
    ("--ngork", NEAR.format("--ngrok", "serve")),
    ("serve --no-ngork", NEAR.format("--no-ngrok", "serve")),
    ("--modle=x", NEAR.format("--model", "serve")),
    (f"--acess-keys {KEY}", NEAR.format("--access-keys", "serve")),
    ("store stats --config-file=x", NEAR.format("--config", "store stats")),
    ("access-key --neww", NEAR.format("--new", "access-key")),
    *((line, NO_NEAR) for line in ("--bogus", "--zzz=1", "-v", "serve --bogus", "config show --bogus", "serve word")),
    ("demo --port 1", NO_NEAR),
    ("--model x config show", RIGHT_ORDER),
    ("serve --ngrok config path", RIGHT_ORDER),
    *((line, "--help(-all)?`") for line in ("bogus", "store bogus", "--port", "--ngrok=5", "-- x")),
    # An abbreviation that works today would become ambiguous with the next setting.
    *((f"{line} --por", "unrecognized arguments") for line in ("", "serve", "config show", "store stats")),
    *((line, "unrecognized arguments") for line in ("--vers", "--clear-reasoning", "--hos=x", "--verb", "--no-ngr")),
    *((f"{line} --port abc", NO_NUMBER) for line in ("", "serve", "config show", "service install")),
    *((f"{line} --config ~/absent.toml", NO_FILE) for line in ("", "config show", "store stats")),
    ("config show --config ~", "^config: cannot read .+; fix it"),
    ("config show --display-reasoning maybe", "is not one of auto, on, off"),
    ("--subagent-model deepsek-flash", 'did you mean "deepseek-flash"\\?'),
    ("store stats --reasoning-content-path ~", "--reasoning-content-path"),
    ("access-key --new ann --usd-per-day five", 'keys.ann.usd_per_day = "five" is not an amount'),
    ("access-key --new --usd-per-day 5", "limits are for a named key"),
    ("access-key --new a/b", "is not a name of letters"),
)
ODD_VALUES = (
    ("--port", "1\n2"), ("--port", "\x1b[2J"), ("--port", "\udcff"), ("--port", "9" * 5000),
    ("--thinking", "x" * 5000), ("--base-url", "http://[::1"), ("--host", "a\nb"), ("--request-timeout", "nan"),
)  # fmt: skip
CHECKOUT = "/home/me/deepseek_cursor_proxy/__main__.py"
PACKAGE = "/usr/lib/site-packages/deepseek_cursor_proxy/__main__.py"
SPACED = "/my src/deepseek_cursor_proxy/__main__.py"
ARCHIVE = "/x/deepseek-cursor-proxy.pyz"
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# How the program was started, the Python that was typed, the one on the path, and what a hint begins with.
STARTS = (
    (CHECKOUT, "py9", "py9", "py9 -m deepseek_cursor_proxy"),
    (PACKAGE, "py9", "py9", "py9 -m deepseek_cursor_proxy"),
    (SPACED, "py9", "py9", "py9 '/my src/deepseek_cursor_proxy'"),
    ("/usr/lib/python3/pytest/__main__.py", "py9", "py9", "deepseek-cursor-proxy"),
    ("", "py9", "py9", "deepseek-cursor-proxy"),
    ("/my src/deepseek_cursor_proxy", "py9", "py9", "py9 '/my src/deepseek_cursor_proxy'"),
    (ARCHIVE, "/usr/bin/py9", "py9", f"py9 {ARCHIVE}"),
    (ARCHIVE, "./venv/bin/python", "python", f"{sys.executable} {ARCHIVE}"),
    (ARCHIVE, "./venv/bin/python", VERSION, f"{VERSION} {ARCHIVE}"),
    (CHECKOUT, "./venv/bin/python", VERSION, f"{VERSION} -m deepseek_cursor_proxy"),
    # An installed package runs with its own Python alone.
    (PACKAGE, "./venv/bin/python", VERSION, f"{sys.executable} -m deepseek_cursor_proxy"),
)


class CliTest(CommandTestCase):
    def setUp(self) -> None:
        super().setUp()
        # A line that should have been refused must not serve for ever.
        self.serving = self.enterContext(mock.patch.object(serve, "_run", return_value=0))
        self.directory = self.home / ".deepseek-cursor-proxy"
        self.store = self.directory / "reasoning_content.sqlite3"

    def show(self, *arguments: str) -> dict[str, tuple[str, str]]:
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
    def test_version_and_help_list_all_commands(self) -> None:
        self.assertEqual(self.output_of("--version"), f"deepseek-cursor-proxy {__version__}\n")
        for flag in ("--help", "-h", "help"):
            lines = self.output_of(flag).splitlines()
            # A screen of 24 lines, one of which is the next prompt.
            self.assertLess(len(lines), 24)
            self.assertLessEqual(max(map(len, lines)), 80)
            listed = [line.split()[0] for line in lines if line.startswith("  ")]
            self.assertEqual([command.name for command in COMMANDS], listed)

    def test_help_shows_ten_common_settings_and_help_all_every_one(self) -> None:
        common = {each.flag for each in SETTINGS if each.is_common}
        for line in ("serve", "config show", "service install"):
            with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
                text = self.output_of(*line.split(), "--help")
            self.assertIn("~/.deepseek-cursor-proxy/config.toml", text)
            self.assertLess(len(text.splitlines()), 40)
            found = re.findall(r"(?m)^  (--[a-z-]+)", text.partition("common settings:")[2])
            self.assertEqual((10, common), (len(found), set(found)), line)

    def test_serve_help_all_lists_every_setting_in_groups(self) -> None:
        text, flags = self.output_of("serve", "--help-all"), [f"  {each.flag}" for each in SETTINGS]
        for flag in (*flags, "--config FILE", "--clear-reasoning-cache", "--no-ngrok"):
            self.assertIn(flag, text)
        usage, *groups = text.split("\n\n")
        self.assertLess(len(usage.splitlines()), 4, "a list of all flags is no help")
        titles = [group.partition("\n")[0] for group in groups]
        self.assertGreater(len(titles), 6, titles)
        self.assertTrue(all(title.endswith(":") for title in titles), titles)
        for group in groups:
            self.assertLess(len(re.findall(r"(?m)^  --", group)), 16, group)
        self.assertEqual(text, self.output_of("--verbose", "--help-all"))

    def test_a_group_of_commands_alone_and_help_print_help(self) -> None:
        for group in (each.name for each in COMMANDS if each.run is None):
            self.assertEqual(self.output_of(group, "--help"), self.output_of(group))
        self.assertEqual(self.output_of("store", "clear", "--help"), self.output_of("help", "store", "clear"))

    def test_a_command_takes_the_flags_that_its_help_lists_and_no_others(self) -> None:
        for line in LEAVES:
            with self.subTest(line):
                takes_all = line in ("serve", "config show", "service install")
                text = self.output_of(*line.split(), "--help-all" if takes_all else "--help")
                self.assertEqual(takes_all, "--reasoning-effort" in text)
                usage = " ".join(text.partition("\n\n")[0].split())
                self.assertRegex(usage, rf"^usage: deepseek-cursor-proxy {line} \[flags\]( [A-Z[][^-]*)?$")
                listed = set(re.findall(r"(?m)(?:^  |, )(-[a-z-]+)", text))
                parser = build_parser(line.split()[0], COMMANDS)
                for word in line.split():
                    parser = next(each.choices[word] for each in parser._actions if isinstance(each.choices, dict))
                self.assertEqual(set(parser._option_string_actions), listed)


class ConfigCommandTest(CliTest):
    def test_config_show_has_a_line_for_every_setting(self) -> None:
        keys = [each.key for each in DECLARATIONS]
        self.assertEqual(list(self.show()), keys)
        changed = list(self.show("--trace-dir", "~", "--port", "1"))
        self.assertEqual(["port", "trace_dir"], changed[:2], "what differs from the default comes first")
        self.assertEqual(sorted(keys), sorted(changed))
        self.assertEqual({origin for _, origin in self.show().values()}, {"default"})

    def test_config_show_prints_the_origin_of_each_value(self) -> None:
        file = self.settings_file('model = "of the file"\nport = 1\nhost = "of the file"\n')
        environment = {"DEEPSEEK_CURSOR_PROXY_PORT": "2", "DEEPSEEK_CURSOR_PROXY_HOST": "of the environment"}
        with mock.patch.dict(os.environ, environment):
            shown = self.show("--config", file, "--port", "3", "--no-display-reasoning", "--cors")
        expected = {
            "model": ('"of the file"', file),
            "host": ('"of the environment"', "environment DEEPSEEK_CURSOR_PROXY_HOST"), "port": ("3", "flag --port"),
            "display_reasoning": ('"off"', "flag --display-reasoning"), "cors": ("true", "flag --cors"),
            "thinking": ('"enabled"', "default"),
        }  # fmt: skip
        self.assertEqual(expected, {key: shown[key] for key in expected})

    def test_a_switch_is_a_flag_with_a_value_without_one_or_with_no_in_front(self) -> None:
        for line, expected in SWITCHES:
            self.assertEqual(expected, self.show(*line.split())["display_reasoning"][0], line)

    def test_the_file_in_use_is_in_the_home_directory_or_named(self) -> None:
        path = self.configure("port = 1")
        value, origin = self.show()["port"]
        self.assertEqual((value, Path(origin)), ("1", Path("~/.deepseek-cursor-proxy/config.toml")))
        self.assertEqual(self.output_of("config", "path"), f"{path}\n")
        self.assertEqual(self.output_of("config", "path", "--config", "~/x.toml"), f"{self.home / 'x.toml'}\n")

    def test_config_show_prints_no_secret(self) -> None:
        value, origin = self.show("--access-keys", f"{KEY},sk-another-of-the-keys")["access_keys"]
        self.assertRegex(value, r'^\["sha256:[0-9a-f]{12}…", "sha256:[0-9a-f]{12}…"\]$')
        self.assertEqual(origin, "flag --access-keys")
        for text, name, shown in (
            ('[host_options]\nx = {token = "t0ken", on = true}\n', "host_options", '{x = {token = "…", on = true}}'),
            ('[upstreams.a]\nbase_url = "https://a.example"\noptions = {x = "t0ken"}\n', "upstreams", '{x = "…"}'),
        ):
            path = self.settings_file(text)
            self.assertIn(shown, self.show("--config", path)[name][0])
            self.assertNotIn("t0ken", self.output_of("config", "show", "--config", path))


class AccessKeyTest(CliTest):
    def piped(self, text: str, *arguments: str) -> Result:
        with mock.patch("sys.stdin", io.StringIO(text)):
            return self.run_command("access-key", *arguments)

    def test_access_key_prints_the_sha256_digest_of_a_piped_key(self) -> None:
        for text in (f"{KEY}\n", KEY, f"  {KEY}  \r\nanother line"):
            digest = hashlib.sha256(KEY.encode()).hexdigest()
            self.assertEqual(self.piped(text), Result(0, f"sha256:{digest}\n", ""))

    def test_access_key_refuses_a_bad_key_without_repeating_it_and_warns_of_a_short_one(self) -> None:
        for text in ("", "\n", "sk-two words\n", "sk-é\n", "sk-\x00\n"):
            ran = self.piped(text)
            self.assertEqual((ran.code, ran.out), (2, ""))
            self.assertIn("that is not a key", ran.err)
            self.assertNotIn("sk-", ran.err)
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
        self.assertIn("to rotate the key", self.refusal("access-key", "--new", "ann", "--config", str(path)))

    def test_a_key_behind_a_misspelt_flag_is_not_repeated(self) -> None:
        for line in (["--acess-keys", KEY], [f"--acess-keys={KEY}"], [KEY], ["--acess-keys", AccessKey.of(KEY).line]):
            refusal = self.refusal(*line)
            self.assertNotIn(KEY[3:], refusal)
            self.assertNotIn(AccessKey.of(KEY).digest.hex(), refusal)


class StoreCommandTest(CliTest):
    def test_commands_that_look_at_something_create_nothing(self) -> None:
        os.environ["DEEPSEEK_CURSOR_PROXY_BASE_URL"] = "http://127.0.0.1:9"
        for line in (
            *("--version", "--help", "serve --help", "config show", "config path", "store stats", "store secret"),
            *("store clear --yes", "sessions list", "sessions show 1", "sessions export", "usage", "usage --csv"),
            *("setup", "setup codex --print", "doctor", "dashboard", "balance", "explain absent.json"),
            *("service status", "service uninstall", "service install --print", "--config ~/absent.toml"),
        ):
            with self.subTest(line):
                self.run_command(*line.split())
                self.assertEqual([], list(self.home.iterdir()))

    def test_store_stats_and_clear_count_all_that_is_stored(self) -> None:
        self.fill_store("one", "three", "fourteen")
        with contextlib.closing(ReasoningStore(self.store)) as store:
            with contextlib.closing(ResponseStore(store.database)) as responses:
                for name in ("a", "b"):
                    responses.put(bytes(32), StoredResponse({"id": name, "status": "completed"}, []))
            with contextlib.closing(CachedAnswers(store.database)) as answers:
                answer = CachedAnswer(b"packed", 1200, 0.25, "USD")
                answers.record(b"1", answer)
                for _ in range(3):
                    answers.count_hit(answer)
                answers.count_miss()
        use = r"cache use    3 hits, 1 misses; 3,600 tokens, \$0\.75 saved\n"
        text = self.output_of("store", "stats", "--config", self.settings_file("reasoning_cache_max_rows = 7000"))
        self.assertRegex(
            text, r"reasonings +3 \(of at most 7,000\)\nlookup keys +3 .*\ntext +16 bytes\noldest use +20\d\d-"
        )
        self.assertRegex(text, rf"responses    2, \d+ bytes\ncache        1 answers, 206 bytes\n{use}")
        other = self.output_of("store", "stats", "--reasoning-content-path", "~/other.sqlite3")
        self.assertRegex(other, rf"{re.escape(str(self.home / 'other.sqlite3'))}[^\0]+reasonings +0 ")
        cleared = "Cleared 3 stored reasonings and 2 responses and 1 cached answers.\n"
        self.assertEqual(cleared, self.output_of("store", "clear", "--yes"))
        text = self.output_of("store", "stats")
        self.assertRegex(text, rf"reasonings +0 [^\0]+responses    0, 0 bytes\ncache        0 answers, 0 bytes\n{use}")
        self.assertEqual("Cleared 0 stored reasonings.\n", self.output_of("store", "clear", "--yes"))

    def test_store_secret_prints_what_other_proxies_need(self) -> None:
        new = self.run_command("store", "secret")
        self.assertRegex(new.out, r"^[0-9a-f]{64}\n$")
        self.assertIn("this new one is for every proxy", new.err)
        secret = InstallationSecret(self.store).read()
        self.assertEqual(f"{secret.hex()}\n", self.output_of("store", "secret"))

    def test_store_clear_asks_and_without_a_yes_deletes_nothing(self) -> None:
        self.fill_store("one", "two")
        self.assertIn("add --yes", self.refusal("store", "clear"))
        ran = self.run_command("store", "clear", answers=("n",))
        self.assertEqual(1, ran.code)
        self.assertRegex(ran.out, r"Delete 2 reasonings in .+\? \[y/N\] Nothing was changed.\n$")
        out = self.output_of("store", "clear", answers=("y",))
        self.assertTrue(out.endswith("Cleared 2 stored reasonings.\n"), out)

    def test_a_file_that_cannot_be_the_store_is_refused_in_one_line_and_left_alone(self) -> None:
        (self.home / "letter").write_text("Dear reader, " * 100)
        line = self.refusal("store", "clear", "--reasoning-content-path", "~/letter")
        self.assertIn(str(self.home / "letter"), line)
        self.assertTrue((self.home / "letter").read_text().startswith("Dear reader, "))
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
    def test_what_cannot_be_done_is_refused_in_one_line_that_says_why(self) -> None:
        for line, words in REFUSED:
            self.assertRegex(self.refusal(*line.split()), words, line)

    def test_odd_characters_in_a_bad_value_are_refused_in_one_line(self) -> None:
        for flag, value in ODD_VALUES:
            with self.subTest(flag, value=value[:10]):
                line = self.refusal("config", "show", flag, value)
                self.assertTrue(line.startswith(f"config: {flag[2:].replace('-', '_')} = "), line)
                self.assertTrue(line.endswith(f"(flag {flag})"), line)
        for path in ("", "x" * 5000):
            line = self.refusal("config", "show", "--config", path)
            self.assertRegex(line, "^config: (cannot read .+; fix it|.+ does not exist; write it)")

    @unittest.skipIf(os.name == "nt", "paths of POSIX")
    def test_a_hint_repeats_the_command_that_started_the_program(self) -> None:
        """In a checkout there is no command of the program's own name."""
        for started, typed, found, program in STARTS:
            with (
                self.subTest(started, typed=typed, found=found),
                mock.patch.object(sys, "argv", [started]),
                mock.patch.object(sys, "orig_argv", [typed]),
                mock.patch.object(sys, "path", ["/home/me", *sys.path]),
                mock.patch("shutil.which", {found: f"/usr/bin/{found}"}.get),
            ):
                self.assertIn(f"`{program} serve --help-all`", self.refusal("--bogus"))
                # A long name ends its line.
                self.assertTrue(" ".join(self.output_of("--help").split()).startswith(f"usage: {program} "))
                if (started, typed) == (CHECKOUT, "py9"):
                    self.assertEqual("py9 /home/me/deepseek_cursor_proxy", program_name(anywhere=True))

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

    def test_a_models_entry_may_name_a_known_model_the_configured_one_or_any_of_another_host(self) -> None:
        for target in ("deepseek-v4-pro", "DeepSeek-Flash", "deepseek-v4-pro-nothink", "deepseek-v4-flash:max"):
            self.show("--config", self.models_file(target))
        self.show("--config", self.models_file("deepseek-v9"), "--model", "deepseek-v9")
        self.assertEqual('"deepseek-flash"', self.show("--subagent-model", "deepseek-flash")["subagent_model"][0])
        theirs = ("--config", self.models_file("vendor/deepseek-v4"), "--base-url")
        for url in ("https://openrouter.ai/api/v1", "https://notdeepseek.com", "http://127.0.0.1:1"):
            self.show(*theirs, url)
        self.refusal(*theirs, "https://api.deepseek.com/beta")

    @unittest.skipIf(os.name == "nt", "Windows invents a home for everybody")
    def test_without_a_home_directory_only_what_needs_one_is_refused(self) -> None:
        for line in (["config", "show"], ["config", "path"], []):
            self.assertIn("write the whole path", self.refusal(*line, "--config", "~no-such-user/x.toml"))
        del os.environ["HOME"]
        with mock.patch("pwd.getpwuid", side_effect=KeyError("no such user")):
            self.assertEqual(self.show()["port"], ("9000", "default"))
            for line in (["config", "path"], ["store", "stats"], ["store", "clear"]):
                self.assertIn("in a home directory that does not exist", self.refusal(*line))
            for line in (["setup"], ["setup", "codex", "--yes"], ["service", "status"]):
                self.assertEqual("there is no home directory for this user; set HOME", self.refusal(*line))


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

    def test_flags_without_a_command_mean_serve(self) -> None:
        for line in ([], ["--port", "0"], ["serve", "--port", "0"]):
            with self.subTest(line):
                self.assertEqual(self.run_command(*line), Result(0, "", ""))
                self.assertEqual(self.serving.call_args.args[0].config.port, 0 if line else 9000)
                self.assertFalse(self.serving.call_args.args[1]["clear_reasoning_cache"])
