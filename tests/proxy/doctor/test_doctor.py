"""The command `doctor` over real sockets: what it says about a healthy set-up, and about each of many broken ones."""

import contextlib
import io
import os
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from deepseek_cursor_proxy import __version__, cli
from deepseek_cursor_proxy.admin import stats
from deepseek_cursor_proxy.cli import doctor_command
from deepseek_cursor_proxy.cli.doctor import this_machine, upstreams
from deepseek_cursor_proxy.cli.doctor.subject import good
from deepseek_cursor_proxy.cli.parser import program_name
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.shared import state
from deepseek_cursor_proxy.upstream import connect
from tests.fake_deepseek import FakeDeepSeek
from tests.support.admin_client import AdminCase
from tests.support.raw_upstream import HANG, RawUpstream, ScriptedReply, TunnelProxy
from tests.support.resp_server import RespServer
from tests.support.slow_relay import SlowRelay

PORT = "DEEPSEEK_CURSOR_PROXY_PORT"
SECRET = "sk-doctor-planted-0123456789"
NOT_FOUND = ScriptedReply.of(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def all_checks(self) -> list[dict[str, str]]:
        """Every finding of the page; names have no more than two words."""
        levels = dict(zip("✓!✗·", ("good", "warning", "failed", "skipped"), strict=True))
        found: list[dict[str, str]] = []
        for line in self.out.splitlines():
            if line[:1] in levels:
                text = line[2:]
                # A longer name has two words.
                name = text[:10].strip() if text[10:11] == " " else " ".join(text.split()[:2])
                rest = text[len(name) :].strip()
                found.append({"name": name, "level": levels[line[0]], "text": rest, "remedy": ""})
            elif found and line.strip().startswith("→ "):
                found[-1]["remedy"] = line.strip().removeprefix("→ ")
        return found

    def checks(self) -> dict[str, dict[str, str]]:
        """By name; the first of several findings with one name."""
        return {each["name"]: each for each in reversed(self.all_checks())}


class DoctorCase(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.home = self.folder / "home-of-someone"
        self.directory = self.home / ".deepseek-cursor-proxy"
        self.directory.mkdir(parents=True, mode=0o700)
        self.store = self.directory / "reasoning_content.sqlite3"
        # Nothing of the developer's own settings, clients and proxies takes part.
        ours = {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP", "TMP", "TMPDIR") if name in os.environ}
        ours |= {"HOME": str(self.home), "USERPROFILE": str(self.home), "DEEPSEEK_API_KEY": SECRET, "PATH": ""}
        ours["DEEPSEEK_CURSOR_PROXY_BASE_URL"] = self.fake.url
        ours[PORT] = str(self.free_port())
        self.enterContext(mock.patch.dict(os.environ, ours, clear=True))

    def free_port(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return int(listener.getsockname()[1])

    def pretend_to_run(self) -> None:
        """A proxy that does not run is a finding; most tests are about others."""
        self.enterContext(mock.patch.object(this_machine, "check_port", return_value=[good("port", "this proxy runs")]))

    def doctor(self, *flags: str) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["doctor", *flags])
        self.assertNotIn(SECRET, out.getvalue() + err.getvalue())
        return Outcome(code, out.getvalue(), err.getvalue())

    def set_variable(self, name: str, value: str) -> None:
        self.enterContext(mock.patch.dict(os.environ, {name: value}))

    def write_settings(self, text: str) -> Path:
        path = self.directory / "config.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    def fill_store(self, rows: int = 3) -> None:
        with contextlib.closing(ReasoningStore(self.store)) as reasonings:
            reasonings.record([([str(row).encode().ljust(32)], f"{row}" + "x" * 3000) for row in range(rows)])


class HealthyTest(DoctorCase):
    def test_a_healthy_set_up_passes(self) -> None:
        self.fill_store()
        self.pretend_to_run()
        ran = self.doctor()
        self.assertEqual((0, ""), (ran.code, ran.err))
        for name in ("python", "settings", "port", "store", "disk", "upstream", "key", "balance", "models"):
            self.assertRegex(ran.out, rf"(?m)^✓ {name} ")
        self.assertRegex(ran.out, r"\n\n9 fine, 3 not checked\. \(\d+\.\d s\)\n\Z")

    def test_while_the_proxy_runs_its_port_and_dashboard_are_known(self) -> None:
        settings = {"reasoning_content_path": self.store}
        proxy = self.proxy(ReasoningStore(self.store), admin_port=0, **settings)
        admin = self.admin(proxy)
        admin.context.public_url = proxy.url.removesuffix("/v1")
        self.set_variable(PORT, str(proxy.address[1]))
        found = self.doctor().checks()
        self.assertRegex(found["port"]["text"], "a proxy runs at")
        self.assertIn(admin.url, found["dashboard"]["text"])
        self.assertEqual("good", found["dashboard"]["level"])
        self.assertEqual("good", found["tunnel"]["level"], found["tunnel"])
        self.assertEqual("good", found["store"]["level"], found["store"])

    def test_without_a_running_proxy_it_fails_with_the_command_that_starts_one(self) -> None:
        ran = self.doctor()
        found = ran.checks()["port"]
        self.assertEqual((1, "failed"), (ran.code, found["level"]))
        self.assertRegex(found["text"], r"^no proxy runs at 127\.0\.0\.1:\d+$")
        self.assertIn(f"start it with `{program_name()}`", found["remedy"])

    def test_the_upstream_is_that_of_the_running_proxy_whatever_the_environment_is(self) -> None:
        proxy = self.proxy(ReasoningStore(self.store), admin_port=0, reasoning_content_path=self.store)
        self.admin(proxy)
        self.set_variable("DEEPSEEK_CURSOR_PROXY_BASE_URL", "https://nowhere.invalid")
        self.set_variable(PORT, "1")
        ran = self.doctor()
        self.assertEqual(0, ran.code, ran.out)
        self.assertRegex(ran.checks()["upstream"]["text"], r"^127\.0\.0\.1 answers")
        self.assertIn(f"the proxy runs at http://127.0.0.1:{proxy.address[1]}/v1", ran.checks()["port"]["text"])

    def test_a_client_that_points_here_is_named(self) -> None:
        path = self.home / ".codex" / "config.toml"
        path.parent.mkdir()
        path.write_text(f'[model_providers.x]\nbase_url = "http://127.0.0.1:{os.environ[PORT]}/v1"\n')
        (self.home / ".qwen").mkdir()
        self.assertRegex(self.doctor().checks()["clients"]["text"], r"^Codex to http://127.0.0.1:\d+$")
        with mock.patch("shutil.which", {"qwen": "/bin/qwen", "codex": "/bin/codex"}.get):
            ran = self.doctor()
            texts = [each["text"] for each in ran.all_checks() if each["name"] == "clients"]
            self.assertRegex(texts[0], r"^Codex to http://127.0.0.1:\d+; Qwen Code elsewhere$")
            self.assertEqual(1, len(texts), texts)
            del os.environ["DEEPSEEK_API_KEY"]
            [found] = [each for each in self.doctor().all_checks() if each["level"] == "warning"]
            self.assertIn("Codex takes its key from DEEPSEEK_API_KEY, which is not set", found["text"])
            path.unlink()
            found = self.doctor().checks()["clients"]
            self.assertEqual("skipped", found["level"])
            self.assertIn(" setup codex` points one to", found["remedy"])

    def test_without_key_and_terminal_the_key_is_skipped_and_nothing_is_asked(self) -> None:
        self.pretend_to_run()
        del os.environ["DEEPSEEK_API_KEY"]
        with mock.patch("getpass.getpass", side_effect=AssertionError):
            ran = self.doctor()
        self.assertEqual(0, ran.code)
        self.assertEqual("skipped", ran.checks()["key"]["level"])
        self.assertEqual("good", ran.checks()["upstream"]["level"])

    def test_on_a_terminal_the_key_is_asked_for(self) -> None:
        del os.environ["DEEPSEEK_API_KEY"]
        terminal = mock.patch("deepseek_cursor_proxy.cli.questions.can_ask", return_value=True)
        with terminal, mock.patch("getpass.getpass", return_value=SECRET):
            ran = self.doctor()
            self.assertEqual("the key is accepted", ran.checks()["key"]["text"])
        with terminal, mock.patch("getpass.getpass", return_value="y"):
            self.assertIn("too short for a key", self.doctor().err)

    def test_nothing_is_left_behind(self) -> None:
        self.doctor()
        self.assertEqual([], list(self.directory.iterdir()))
        self.fill_store()
        before = {path.name: path.read_bytes() for path in self.directory.iterdir()}
        self.doctor()
        self.assertEqual(before, {path.name: path.read_bytes() for path in self.directory.iterdir()})

    def test_a_terminal_without_the_signs_gets_ascii(self) -> None:
        self.set_variable("PYTHONIOENCODING", "cp437")
        out = io.TextIOWrapper(io.BytesIO(), encoding="cp437")
        with contextlib.redirect_stdout(out):
            cli.main(["doctor"])
            out.flush()
            text = out.buffer.getvalue().decode("ascii")
        self.assertRegex(text, r"(?m)^\+ python ")


class Broken(NamedTuple):
    """A set-up that is broken by `arrange`, and what is said about it."""

    symptom: str
    arrange: Callable[["BrokenTest"], None]
    check: str
    level: str
    text: str
    remedy: str


class BrokenTest(DoctorCase):
    def test_every_broken_set_up_is_named_with_its_remedy(self) -> None:
        for row in BROKEN:
            with self.subTest(row.symptom):
                self.doCleanups()
                self.__dict__.pop("folder", None)
                self.setUp()
                if row.check != "port":
                    self.pretend_to_run()
                row.arrange(self)
                ran = self.doctor()
                found = [each for each in ran.all_checks() if each["name"] == row.check]
                match = next((each for each in found if each["level"] == row.level), None)
                assert match is not None, (row.check, found)
                self.assertRegex(match["text"], row.text)
                self.assertRegex(match["remedy"], row.remedy)
                self.assertEqual(int(row.level == "failed"), ran.code)

    # The arrangements …

    def use_upstream(self, url: str) -> None:
        self.set_variable("DEEPSEEK_CURSOR_PROXY_BASE_URL", url)

    def wrong_key(self) -> None:
        self.use_upstream(self.enterContext(FakeDeepSeek(keys=("sk-another",))).url)

    def use_engine(self) -> RespServer:
        # A busy machine is no outage of the engine.
        self.enterContext(mock.patch.object(state, "_WRITE_SECONDS", 5.0))
        server = self.enterContext(RespServer())
        self.set_variable("DEEPSEEK_CURSOR_PROXY_STORE", server.url)
        self.set_variable("DEEPSEEK_CURSOR_PROXY_SECRET", "ab" * 32)
        return server

    def no_engine(self) -> None:
        self.use_engine().stop()

    def distant_engine(self) -> None:
        relay = self.enterContext(SlowRelay(self.use_engine().port, 0.4))
        self.enterContext(mock.patch.object(state, "_WRITE_SECONDS", 0.25))
        self.set_variable("DEEPSEEK_CURSOR_PROXY_STORE", relay.url)

    def engine_of_others(self) -> None:
        self.use_engine().run(b"SET", b"dcp:check", b"another")

    def secret_of_one(self) -> None:
        self.use_engine()
        self.set_variable("DEEPSEEK_CURSOR_PROXY_SECRET", "")

    def engine_that_drops(self) -> None:
        info = b"redis_version:7.0.0\r\nmaxmemory_policy:allkeys-lru\r\n"
        self.enterContext(mock.patch.object(self.use_engine(), "_do_info", return_value=info))

    def old_engine(self) -> None:
        self.enterContext(mock.patch.object(self.use_engine(), "_do_info", return_value=b"redis_version:5.0.7\r\n"))

    def no_key_at_all(self) -> None:
        self.set_variable("DEEPSEEK_API_KEY", "two words")

    def key_of_anthropic(self) -> None:
        self.set_variable("DEEPSEEK_API_KEY", "sk-ant-of-another-company")

    def no_balance(self) -> None:
        self.fake.has_balance = False

    def no_name(self) -> None:
        self.use_upstream("https://deepseek.invalid")
        failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.enterContext(mock.patch.object(connect, "_resolve", side_effect=failure))

    def no_listener(self) -> None:
        self.use_upstream(f"http://127.0.0.1:{self.free_port()}")

    def no_http(self) -> None:
        self.use_upstream(self.enterContext(RawUpstream(lambda _: ScriptedReply.of(b"hello\r\n\r\n"))).url)

    def silent(self) -> None:
        self.enterContext(mock.patch.object(upstreams, "_ANSWER_SECONDS", 0.1))
        self.use_upstream(self.enterContext(RawUpstream(lambda _: ScriptedReply.of(b"", HANG))).url)

    def untrusted_certificate(self) -> None:
        self.use_upstream(self.enterContext(RawUpstream(lambda _: NOT_FOUND, tls=True)).url)

    def outbound_proxy(self) -> None:
        reply = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
        outbound = self.enterContext(TunnelProxy(1, reply))
        self.use_upstream("https://api.deepseek.com")
        self.set_variable("HTTPS_PROXY", f"http://someone:{SECRET}@127.0.0.1:{outbound.port}")

    def port_taken(self) -> None:
        other = self.enterContext(RawUpstream(lambda _: NOT_FOUND))
        self.set_variable(PORT, str(other.port))

    def foreign_address(self) -> None:
        self.set_variable("DEEPSEEK_CURSOR_PROXY_HOST", "192.0.2.7")

    def other_version(self) -> None:
        self.enterContext(mock.patch.object(stats, "__version__", "0.0.9"))
        self.admin(self.proxy(ReasoningStore(self.store), admin_port=0, reasoning_content_path=self.store))

    def read_only_store(self) -> None:
        self.fill_store()
        self.store.chmod(0o400)
        # The tests may run as root, who can write everything.
        self.enterContext(mock.patch.object(this_machine, "_can_write", return_value=False))

    def damaged_store(self) -> None:
        self.fill_store(50)
        data = bytearray(self.store.read_bytes())
        data[8192:-4096] = b"\x55" * (len(data) - 8192 - 4096)
        self.store.write_bytes(data)

    def damaged_page(self) -> None:
        """The rows can still be counted, by their index."""
        self.fill_store(50)
        data = bytearray(self.store.read_bytes())
        at = data.index(b"x" * 2000) // 4096 * 4096
        data[at + 8 : at + 12] = b"\xff" * 4
        self.store.write_bytes(data)

    def full_disk(self) -> None:
        usage = mock.Mock(free=1_000_000)
        self.enterContext(mock.patch("shutil.disk_usage", return_value=usage))

    def full_store(self) -> None:
        self.fill_store(5)
        self.set_variable("DEEPSEEK_CURSOR_PROXY_REASONING_CACHE_MAX_ROWS", "5")

    def foreign_store(self) -> None:
        self.store.write_text("my shopping list\n" * 10)

    def foreign_database(self) -> None:
        with contextlib.closing(sqlite3.connect(self.store)) as connection:
            connection.execute("CREATE TABLE songs (title TEXT)")
            connection.commit()

    def folder_as_store(self) -> None:
        self.store.mkdir()

    def damaged_before(self) -> None:
        self.store.with_name(f"{self.store.name}.corrupt-20260101-000000").write_bytes(b"")

    def store_for_others(self) -> None:
        self.fill_store()
        self.store.chmod(0o644)

    def unknown_setting(self) -> None:
        self.write_settings("reasoning_efort = 'high'\n")

    def bad_value(self) -> None:
        self.write_settings("shutdown_grace = 'soon'\nfuture_setting = 1\n")

    def damaged_settings(self) -> None:
        self.write_settings("port = = 9\n")

    def plain_http(self) -> None:
        self.no_name()
        self.use_upstream("http://deepseek.invalid/v1")

    def settings_for_others(self) -> None:
        self.write_settings('verbose = true\naccess_keys = ["sk-0123456789abcdef01234"]\n').chmod(0o644)

    def old_sqlite(self) -> None:
        self.enterContext(mock.patch("sqlite3.sqlite_version_info", (3, 31, 1)))

    def other_models(self) -> None:
        self.fake.models = ("deepseek-v9", "deepseek-v9-mini")

    def unreadable_admin_key(self) -> None:
        (self.directory / "admin.key").mkdir()

    def admin_key_for_others(self) -> None:
        path = self.directory / "admin.key"
        path.write_text("sk-0123456789abcdef01234\n")
        path.chmod(0o644)

    def other_dashboard(self) -> None:
        other = self.enterContext(RawUpstream(lambda _: NOT_FOUND))
        (self.directory / f"admin-{other.port}.url").write_text(other.url)

    def lost_tunnel(self) -> None:
        settings = {"reasoning_content_path": self.store}
        admin = self.admin(self.proxy(ReasoningStore(self.store), admin_port=0, **settings))
        admin.context.public_url = self.enterContext(RawUpstream(lambda _: NOT_FOUND)).url

    def empty_variable(self) -> None:
        self.write_settings(
            f'[upstreams.main]\nbase_url = "{self.fake.url}"\n'
            f'[upstreams.spare]\nbase_url = "{self.fake.url}"\nkey_env = "SPARE_KEY"\n'
        )

    def damaged_client(self) -> None:
        path = self.home / ".codex" / "config.toml"
        path.parent.mkdir()
        path.write_bytes(b"\xff\xfe\xff")


POSIX = os.name != "nt"
T = BrokenTest
BROKEN = [
    Broken("engine absent", T.no_engine, "engine", "failed", "it does not answer: .*refused", "correct `store`"),
    Broken("engine too distant", T.distant_engine, "engine", "failed", "it does not answer: .*in time", "start it"),
    Broken("engine of others", T.engine_of_others, "engine", "failed", "another installation secret", "secret_file"),
    Broken("secret of one", T.secret_of_one, "engine", "warning", "a secret that only this proxy has", "secret_file"),
    Broken("engine that drops", T.engine_that_drops, "engine", "warning", "in use .allkeys-lru", "noeviction"),
    Broken("old engine", T.old_engine, "engine", "failed", "is version 5.0.7", "6.2 is the oldest"),
    Broken(
        "wrong key", T.wrong_key, "key", "failed", "DEEPSEEK_API_KEY is not accepted", "platform.deepseek.com/api_keys"
    ),
    Broken("no key at all", T.no_key_at_all, "key", "failed", "DEEPSEEK_API_KEY holds no key", "set DEEPSEEK_API_KEY"),
    Broken("key of Anthropic", T.key_of_anthropic, "key", "failed", "or one from Anthropic", "set DEEPSEEK_API_KEY"),
    Broken("no balance", T.no_balance, "balance", "failed", r"cannot be used \(0.00 CNY\)", "top up at https"),
    Broken(
        "no such name",
        T.no_name,
        "upstream",
        "failed",
        r"deepseek.invalid:443 cannot be reached \(Name or service not known\)",
        "check network and --base-url",
    ),
    Broken("nobody listens", T.no_listener, "upstream", "failed", "cannot be reached", "check network"),
    Broken("silent upstream", T.silent, "upstream", "failed", "did not answer within", "status.deepseek.com"),
    Broken("no HTTP", T.no_http, "upstream", "failed", "not HTTP", "."),
    Broken(
        "untrusted certificate",
        T.untrusted_certificate,
        "upstream",
        "failed",
        "The certificate of localhost",
        "SSL_CERT_FILE",
    ),
    Broken(
        "outbound proxy",
        T.outbound_proxy,
        "upstream",
        "failed",
        r"The proxy .* \(407\)",
        "password in HTTPS_PROXY",
    ),
    Broken("port taken", T.port_taken, "port", "failed", "in use by another program", r"--port \d+"),
    Broken(
        "foreign address",
        T.foreign_address,
        "port",
        "failed",
        "not an address of this machine",
        "set host to 127.0.0.1",
    ),
    Broken("other version", T.other_version, "dashboard", "warning", "belongs to version 0.0.9", "stop it and start"),
    Broken(
        "read-only store", T.read_only_store, "store", "failed", "cannot be written", "readable and writable for you"
    ),
    Broken("damaged store", T.damaged_store, "store", "failed", "it is damaged", "move"),
    Broken("damaged page", T.damaged_page, "store", "failed", "it is damaged", "stop the proxy and move the file away"),
    Broken("full disk", T.full_disk, "disk", "failed", "1 MB free", "free some space"),
    Broken(
        "full store", T.full_store, "store", "warning", "5 of at most 5 reasonings.*full", "reasoning_cache_max_rows"
    ),
    Broken("text at the store's path", T.foreign_store, "store", "failed", "not an SQLite database", "move it away"),
    Broken("database of others", T.foreign_database, "store", "failed", "of another program", "move it away"),
    Broken("folder as store", T.folder_as_store, "store", "failed", "it is a folder", "choose another place"),
    Broken(
        "damaged before", T.damaged_before, "store", "warning", r"damaged files were set aside \(1\)", "delete them"
    ),
    Broken(
        "unknown setting",
        T.unknown_setting,
        "settings",
        "failed",
        'unknown key "reasoning_efort"',
        'did you mean "reasoning_effort"',
    ),
    Broken(
        "bad value", T.bad_value, "settings", "failed", 'shutdown_grace = "soon" is not a number', "correct or remove"
    ),
    Broken("damaged settings", T.damaged_settings, "settings", "failed", "is not valid TOML", "correct or remove it"),
    Broken("key in clear", T.plain_http, "settings", "failed", "would send your key in clear", "use https"),
    Broken(
        "old SQLite", T.old_sqlite, "python", "failed", "SQLite 3.31.1; the store needs SQLite 3.37", "a newer SQLite"
    ),
    Broken(
        "other models",
        T.other_models,
        "models",
        "warning",
        "deepseek-v4-pro not in its list: deepseek-v9",
        "correct model",
    ),
    Broken(
        "unreadable admin key", T.unreadable_admin_key, "dashboard", "failed", "admin.key cannot be read", "chmod 600"
    ),
    Broken(
        "another program's dashboard",
        T.other_dashboard,
        "dashboard",
        "failed",
        "does not prove",
        "older version, restart",
    ),
    Broken("lost tunnel", T.lost_tunnel, "tunnel", "failed", "something else answers, with 404", "paste the URL"),
    Broken("empty variable", T.empty_variable, "key spare", "failed", "SPARE_KEY holds no key", "set SPARE_KEY"),
    Broken("damaged client", T.damaged_client, "clients", "warning", "settings of Codex cannot be read", "of Codex"),
]
if POSIX:
    BROKEN += [
        Broken("store for others", T.store_for_others, "store", "warning", "other users can read", "chmod 600"),
        Broken(
            "settings for others",
            T.settings_for_others,
            "settings",
            "warning",
            "has keys, and other users",
            "chmod 600",
        ),
        Broken(
            "admin key for others", T.admin_key_for_others, "dashboard", "warning", "other users can read", "chmod 600"
        ),
    ]


# An alias of a test case would be run as another one.
del T


class SettingsTest(DoctorCase):
    def test_all_mistakes_are_named_and_no_key_is_sent_until_they_are_gone(self) -> None:
        self.write_settings("shutdown_grace = 'soon'\nfuture_setting = 1\nreasoning_cache_max_rows = 0\n")
        upstream = self.enterContext(RawUpstream(lambda _: NOT_FOUND))
        self.set_variable("DEEPSEEK_CURSOR_PROXY_BASE_URL", upstream.url)
        self.set_variable("DEEPSEEK_CURSOR_PROXY_REQUEST_TIMEOUT", "never")
        ran = self.doctor()
        self.assertEqual(1, len(upstream.requests))
        self.assertNotIn(SECRET.encode(), upstream.requests[0])
        faults = [each["text"] for each in ran.all_checks() if each["name"] == "settings"]
        self.assertEqual(4, len(faults), faults)
        self.assertEqual("no key is sent anywhere while the settings have a mistake", ran.checks()["key"]["text"])

    def test_a_file_that_is_named_and_does_not_exist_is_a_fault(self) -> None:
        found = self.doctor("--config", str(self.folder / "none.toml")).checks()["settings"]
        self.assertEqual(("failed", True), (found["level"], "does not exist" in found["text"]))

    def test_without_a_home_directory_the_rest_is_checked(self) -> None:
        self.pretend_to_run()
        with mock.patch.object(Path, "expanduser", side_effect=RuntimeError):
            ran = self.doctor()
        self.assertEqual(0, ran.code, ran.out)
        self.assertIn("no home directory", ran.checks()["store"]["text"])
        self.assertEqual("good", ran.checks()["key"]["level"])


class WaitTest(DoctorCase):
    def test_a_check_that_hangs_ends_in_time(self) -> None:
        released = threading.Event()
        self.addCleanup(released.set)

        def hang(*_: object) -> None:
            released.wait(30)

        rows = [("slow", hang)]
        with (
            mock.patch.object(doctor_command, "table", return_value=rows),
            mock.patch.object(doctor_command, "_SECONDS", 0.05),
        ):
            found = self.doctor().checks()["slow"]
        self.assertEqual(("failed", "no result within 0 s"), (found["level"], found["text"]))

    def test_a_check_that_fails_itself_hides_no_other(self) -> None:
        with mock.patch.object(this_machine, "check_port", side_effect=ZeroDivisionError(f"with {SECRET}")):
            found = self.doctor().checks()
        self.assertIn("the check itself failed (ZeroDivisionError", found["port"]["text"])
        self.assertEqual("good", found["key"]["level"])


class ReportTest(DoctorCase):
    def test_a_report_has_nothing_private_in_it(self) -> None:
        planted = {
            "user": "zaphod-b",
            "machine": "heart-of-gold",
            "upstream": "gateway.magrathea.example",
            "label": "slartibartfast",
            "outbound": "proxy.magrathea.example",
            "password": "p4ssw0rd-of-ford",
            "public": "deep-thought.example",
            "address": "10.42.42.42",
            "key": "fjords-4242424242",
            "value": "betelgeuse",
        }
        home = self.folder / planted["user"]
        (home / ".deepseek-cursor-proxy").mkdir(parents=True)
        for name in ("HOME", "USERPROFILE"):
            self.set_variable(name, str(home))
        self.set_variable("USER", planted["user"])
        self.set_variable("MAGRATHEA_KEY", planted["key"])
        self.set_variable("HTTPS_PROXY", f"http://ford:{planted['password']}@{planted['outbound']}:3128")
        self.set_variable("NO_PROXY", planted["upstream"])
        self.enterContext(mock.patch("socket.gethostname", return_value=planted["machine"]))
        failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.enterContext(mock.patch.object(connect, "_resolve", side_effect=failure))
        for more in ("", f"trace_dir = 5\nthinking = '{planted['value']}'\npublic_hosts = ['{planted['value']} x']\n"):
            (home / ".deepseek-cursor-proxy" / "config.toml").write_text(
                f'host = "{planted["address"]}"\n{more or "verbose = false"}\n'
                + ("" if more else f'public_hosts = ["{planted["public"]}"]\n')
                + f'[upstreams.{planted["label"]}]\nbase_url = "https://{planted["upstream"]}/v1"\n'
                + 'key_env = "MAGRATHEA_KEY"\n[upstreams.direct]\n'
                + f'base_url = "https://{planted["address"]}/v1"\n'
            )
            # It is all there for who runs it, but for what is a secret.
            shown = self.doctor().out
            for what in ("upstream", "outbound", "label", "address", "value" if more else "public"):
                self.assertIn(planted[what], shown)
            ran = self.doctor("--report")
            self.assertEqual(1, ran.code)
            for what, text in planted.items():
                with self.subTest(what=what):
                    self.assertNotIn(text.lower(), ran.out.lower())
            self.assertIn("~", ran.out)

    def test_a_name_or_secret_of_the_user_is_in_no_report_wherever_it_is_written(self) -> None:
        plant = "Zaphod-b_42x"
        base = f"https://{plant}.example/{plant}"
        look_up = socket.getaddrinfo

        def fail(host: str, *more: Any, **options: Any) -> Any:
            if plant.lower() in host.lower():
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return look_up(host, *more, **options)

        self.enterContext(mock.patch.object(socket, "getaddrinfo", fail))
        shown = 0
        for text in (
            f"{plant} = 1\n",
            f'"my {plant}" = 1\n',
            f"port = '{plant}'\n",
            f"port = {plant}\n",
            f"[upstreams.{plant}]\nbase_url = '{base}'\n[upstreams.{plant}]\n",
            f"[upstreams.{plant}]\nbase_url = '{base}'\nkey_env = ['{plant}_KEY']\nmodels = ['{plant}']\n",
            f"[upstreams.'{plant} {plant}']\nbase_url = 5\n",
            f"[upstreams.main]\nbase_url = '{self.fake.url}/{plant}'\n{plant} = 3\n",
            f"[{plant}]\n{plant} = 1\n",
            f"[models]\n{plant} = '{plant}'\n",
            f"[passthrough.'{plant}*']\nbase_url = '{base}'\nkey_env = '{plant}'\n",
            f"[prices.'{plant}']\n{plant} = '{plant}'\n",
            f"public_hosts = ['{plant}.example', '*.{plant}']\n",
            f"host = '{plant}'\n",
            f"base_url = '{self.fake.url}/{plant}'\nmodel = '{plant}'\n",
            f"reasoning_content_path = '{self.folder}/of-{plant}-files/x_{plant}.sqlite3'\n",
            f"trace_dir = '/proc/{plant}/x'\ntokenizer = '/{plant}-tokens.json'\n",
            f"store = 'redis://{plant}:{plant}@127.0.0.1:1/0'\nsecret_file = '{self.folder}/{plant}'\n",
            f"tunnel = '{plant}'\nadmin_key = '{plant} {plant}'\n",
        ):
            self.write_settings(text)
            shown += plant.lower() in self.doctor().out.lower()
            with self.subTest(text):
                self.assertNotIn(plant.lower(), self.doctor("--report").out.lower())
        self.assertGreater(shown, 12)

    def test_a_report_is_a_block_for_an_issue_and_keeps_what_helps(self) -> None:
        ran = self.doctor("--report")
        self.assertTrue(ran.out.startswith(f"```text\ndeepseek-cursor-proxy {__version__}\n"), ran.out)
        self.assertTrue(ran.out.endswith("```\n"))
        self.assertIn("127.0.0.1", ran.out)
        self.assertNotIn("110.00", ran.out)
        self.assertNotIn(str(self.home), ran.out)
