"""The command `doctor` over real sockets: what it says about a healthy set-up, and about each of many broken ones."""

import contextlib
import functools
import io
import os
import socket
import sqlite3
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from deepseek_cursor_proxy import __version__, cli
from deepseek_cursor_proxy.cli.doctor import command as doctor_command
from deepseek_cursor_proxy.cli.doctor import this_machine, upstreams
from deepseek_cursor_proxy.cli.doctor.subject import good
from deepseek_cursor_proxy.cli.parser import program_name
from deepseek_cursor_proxy.features.dashboard import stats
from deepseek_cursor_proxy.features.redis import client
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.upstream import connections
from tests.fake_deepseek import FakeDeepSeek
from tests.support.admin_client import AdminCase
from tests.support.ports import closed_port, server_port
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
        ours[PORT] = str(self.enterContext(server_port()))
        self.enterContext(mock.patch.dict(os.environ, ours, clear=True))

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
            self.assertIn("Codex reads its key from DEEPSEEK_API_KEY, which is not set", found["text"])
            path.unlink()
            found = self.doctor().checks()["clients"]
            self.assertEqual("skipped", found["level"])
            self.assertIn(" setup codex` configures it for", found["remedy"])

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


needs_modes = unittest.skipIf(os.name == "nt", "Windows has no modes")
Arrange = Callable[["BrokenTest"], None]


def says(check: str, level: str, text: str, remedy: str) -> Callable[[Arrange], Arrange]:
    """Make a test of a function that breaks the set-up: this is what doctor says about it."""

    def decorate(arrange: Arrange) -> Arrange:
        @functools.wraps(arrange)
        def test(self: "BrokenTest") -> None:
            if check != "port":
                self.pretend_to_run()
            arrange(self)
            ran = self.doctor()
            found = [each for each in ran.all_checks() if each["name"] == check]
            match = next((each for each in found if each["level"] == level), None)
            assert match is not None, (check, found)
            self.assertRegex(match["text"], text)
            self.assertRegex(match["remedy"], remedy)
            self.assertEqual(int(level == "failed"), ran.code)

        return test

    return decorate


def fails(check: str, text: str, remedy: str) -> Callable[[Arrange], Arrange]:
    return says(check, "failed", text, remedy)


def warns(check: str, text: str, remedy: str) -> Callable[[Arrange], Arrange]:
    return says(check, "warning", text, remedy)


class BrokenTest(DoctorCase):
    """Each set-up is broken in one way, and doctor names it with its remedy."""

    def use_upstream(self, url: str) -> None:
        self.set_variable("DEEPSEEK_CURSOR_PROXY_BASE_URL", url)

    @fails("key", "DEEPSEEK_API_KEY is not accepted", "platform.deepseek.com/api_keys")
    def test_wrong_key(self) -> None:
        self.use_upstream(self.enterContext(FakeDeepSeek(keys=("sk-another",))).url)

    def use_engine(self) -> RespServer:
        # A busy machine is no outage of the engine.
        self.enterContext(mock.patch.object(client, "CALL_SECONDS", 5.0))
        server = self.enterContext(RespServer())
        self.set_variable("DEEPSEEK_CURSOR_PROXY_STORE", server.url)
        self.set_variable("DEEPSEEK_CURSOR_PROXY_SECRET", "ab" * 32)
        return server

    @fails("engine", "it does not answer: .*refused", "correct `store`")
    def test_no_engine(self) -> None:
        self.use_engine().stop()

    @fails("engine", "it does not answer: .*in time", "start it")
    def test_distant_engine(self) -> None:
        relay = self.enterContext(SlowRelay(self.use_engine().port, 0.4))
        self.enterContext(mock.patch.object(client, "CALL_SECONDS", 0.25))
        self.set_variable("DEEPSEEK_CURSOR_PROXY_STORE", relay.url)

    @fails("engine", "another installation secret", "DEEPSEEK_CURSOR_PROXY_SECRET")
    def test_engine_of_others(self) -> None:
        self.use_engine().run(b"SET", b"dcp:check", b"another")

    @warns("engine", "a secret that only this proxy has", "DEEPSEEK_CURSOR_PROXY_SECRET")
    def test_secret_of_one(self) -> None:
        self.use_engine()
        self.set_variable("DEEPSEEK_CURSOR_PROXY_SECRET", "")

    @warns("engine", "in use .allkeys-lru", "noeviction")
    def test_engine_that_drops(self) -> None:
        info = b"redis_version:7.0.0\r\nmaxmemory_policy:allkeys-lru\r\n"
        self.enterContext(mock.patch.object(self.use_engine(), "_do_info", return_value=info))

    @fails("engine", "is version 5.0.7", "6.2 is the oldest")
    def test_old_engine(self) -> None:
        self.enterContext(mock.patch.object(self.use_engine(), "_do_info", return_value=b"redis_version:5.0.7\r\n"))

    @fails("key", "DEEPSEEK_API_KEY holds no key", "set DEEPSEEK_API_KEY")
    def test_no_key_at_all(self) -> None:
        self.set_variable("DEEPSEEK_API_KEY", "two words")

    @fails("balance", r"cannot be used \(0.00 CNY\)", "top up at https")
    def test_no_balance(self) -> None:
        self.fake.has_balance = False

    def use_unknown_name(self, scheme: str) -> None:
        self.use_upstream(f"{scheme}://deepseek.invalid")
        failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.enterContext(mock.patch.object(connections, "_resolve", side_effect=failure))

    @fails(
        "upstream", r"deepseek.invalid:443 cannot be reached \(Name or service not known\)", "network and --base-url"
    )
    def test_no_name(self) -> None:
        self.use_unknown_name("https")

    @fails("upstream", "cannot be reached", "check network")
    def test_no_listener(self) -> None:
        self.use_upstream(f"http://127.0.0.1:{self.enterContext(closed_port())}")

    @fails("upstream", "did not answer within", "status.deepseek.com")
    def test_silent(self) -> None:
        self.enterContext(mock.patch.object(upstreams, "_ANSWER_SECONDS", 0.1))
        self.use_upstream(self.enterContext(RawUpstream(lambda _: ScriptedReply.of(b"", HANG))).url)

    @fails("upstream", "The certificate of localhost", "SSL_CERT_FILE")
    def test_untrusted_certificate(self) -> None:
        self.use_upstream(self.enterContext(RawUpstream(lambda _: NOT_FOUND, tls=True)).url)

    @fails("upstream", r"The proxy .* \(407\)", "password in HTTPS_PROXY")
    def test_outbound_proxy(self) -> None:
        reply = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
        outbound = self.enterContext(TunnelProxy(1, reply))
        self.use_upstream("https://api.deepseek.com")
        self.set_variable("HTTPS_PROXY", f"http://someone:{SECRET}@127.0.0.1:{outbound.port}")

    @fails("port", "in use by another program", r"--port \d+")
    def test_port_taken(self) -> None:
        other = self.enterContext(RawUpstream(lambda _: NOT_FOUND))
        self.set_variable(PORT, str(other.port))

    @fails("port", "not an address of this machine", "set host to 127.0.0.1")
    def test_foreign_address(self) -> None:
        self.set_variable("DEEPSEEK_CURSOR_PROXY_HOST", "192.0.2.7")

    @warns("dashboard", "belongs to version 0.0.9", "stop it and start")
    def test_other_version(self) -> None:
        self.enterContext(mock.patch.object(stats, "__version__", "0.0.9"))
        self.admin(self.proxy(ReasoningStore(self.store), admin_port=0, reasoning_content_path=self.store))

    @fails("store", "cannot be written", "readable and writable for you")
    def test_read_only_store(self) -> None:
        self.fill_store()
        self.store.chmod(0o400)
        # The tests may run as root, who can write everything.
        self.enterContext(mock.patch.object(this_machine, "_can_write", return_value=False))

    def test_an_empty_file_of_a_store_is_one_that_will_be_created(self) -> None:
        """The check itself failed: a proxy that is killed at its first start leaves such a file."""
        self.store.touch()
        self.assertIn("will be created", self.doctor().checks()["store"]["text"])

    @fails("store", "it is damaged", "move")
    def test_damaged_store(self) -> None:
        self.fill_store(50)
        data = bytearray(self.store.read_bytes())
        data[8192:-4096] = b"\x55" * (len(data) - 8192 - 4096)
        self.store.write_bytes(data)

    @fails("disk", "1 MB free", "free some space")
    def test_full_disk(self) -> None:
        usage = mock.Mock(free=1_000_000)
        self.enterContext(mock.patch("shutil.disk_usage", return_value=usage))

    @warns("store", "5 of at most 5 reasonings.*full", "reasoning_cache_max_rows")
    def test_full_store(self) -> None:
        self.fill_store(5)
        self.set_variable("DEEPSEEK_CURSOR_PROXY_REASONING_CACHE_MAX_ROWS", "5")

    @fails("store", "of another program", "move it away")
    def test_foreign_database(self) -> None:
        with contextlib.closing(sqlite3.connect(self.store)) as connection:
            connection.execute("CREATE TABLE songs (title TEXT)")
            connection.commit()

    @warns("store", r"damaged files were set aside \(1\)", "delete them")
    def test_damaged_before(self) -> None:
        self.store.with_name(f"{self.store.name}.corrupt-20260101-000000").write_bytes(b"")

    @needs_modes
    @warns("store", "other users can read", "chmod 600")
    def test_store_for_others(self) -> None:
        self.fill_store()
        self.store.chmod(0o644)

    @fails("settings", 'unknown key "reasoning_efort"', 'did you mean "reasoning_effort"')
    def test_unknown_setting(self) -> None:
        self.write_settings("reasoning_efort = 'high'\n")

    @fails("settings", 'shutdown_grace = "soon" is not a number', "correct or remove")
    def test_bad_value(self) -> None:
        self.write_settings("shutdown_grace = 'soon'\nfuture_setting = 1\n")

    @fails("settings", "is not valid TOML", "correct or remove it")
    def test_damaged_settings(self) -> None:
        self.write_settings("port = = 9\n")

    @fails("settings", "would send your key in clear", "use https")
    def test_plain_http(self) -> None:
        self.use_unknown_name("http")

    @needs_modes
    @warns("settings", "has keys, and other users", "chmod 600")
    def test_settings_for_others(self) -> None:
        self.write_settings('verbose = true\naccess_keys = ["sk-0123456789abcdef01234"]\n').chmod(0o644)

    @fails("python", "SQLite 3.31.1; the store needs SQLite 3.37", "a newer SQLite")
    def test_old_sqlite(self) -> None:
        self.enterContext(mock.patch("sqlite3.sqlite_version_info", (3, 31, 1)))

    @warns("models", "deepseek-v4-pro not in its list: deepseek-v9", "correct model")
    def test_other_models(self) -> None:
        self.fake.models = ("deepseek-v9", "deepseek-v9-mini")

    @fails("dashboard", "admin.key cannot be read", "chmod 600")
    def test_unreadable_admin_key(self) -> None:
        (self.directory / "admin.key").mkdir()

    @needs_modes
    @warns("dashboard", "other users can read", "chmod 600")
    def test_admin_key_for_others(self) -> None:
        path = self.directory / "admin.key"
        path.write_text("sk-0123456789abcdef01234\n")
        path.chmod(0o644)

    @fails("dashboard", "does not prove", "older version, restart")
    def test_other_dashboard(self) -> None:
        other = self.enterContext(RawUpstream(lambda _: NOT_FOUND))
        (self.directory / f"admin-{other.port}.url").write_text(other.url)

    @fails("tunnel", "something else answers, with 404", "paste the URL")
    def test_lost_tunnel(self) -> None:
        settings = {"reasoning_content_path": self.store}
        admin = self.admin(self.proxy(ReasoningStore(self.store), admin_port=0, **settings))
        admin.context.public_url = self.enterContext(RawUpstream(lambda _: NOT_FOUND)).url

    @fails("key spare", "SPARE_KEY holds no key", "set SPARE_KEY")
    def test_empty_variable(self) -> None:
        self.write_settings(
            f'[upstreams.main]\nbase_url = "{self.fake.url}"\n'
            f'[upstreams.spare]\nbase_url = "{self.fake.url}"\nkey_env = "SPARE_KEY"\n'
        )

    @warns("clients", "settings of Codex cannot be read", "of Codex")
    def test_damaged_client(self) -> None:
        path = self.home / ".codex" / "config.toml"
        path.parent.mkdir()
        path.write_bytes(b"\xff\xfe\xff")


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
    def test_a_name_or_secret_of_the_user_is_in_no_report_wherever_it_is_written(self) -> None:
        plant, address = "Zaphod-b_42x", "10.42.42.42"
        base, look_up, listen = f"https://{plant}.example/{plant}", socket.getaddrinfo, socket.create_server

        def fail(host: Any, *more: Any, **options: Any) -> Any:
            if plant.lower() in str(host).lower() or address in str(host):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return (listen if isinstance(host, tuple) else look_up)(host, *more, **options)

        self.enterContext(mock.patch.multiple(socket, getaddrinfo=fail, create_server=fail))
        self.enterContext(mock.patch("socket.gethostname", return_value=plant))
        # It is to point here, which is a remedy with the host.
        self.enterContext(mock.patch("shutil.which", {"codex": "/bin/codex"}.get))
        # The same for all reports, and slow to find.
        self.enterContext(
            mock.patch.object(doctor_command, "_public_words", return_value=doctor_command._public_words())
        )
        home = self.folder / plant
        self.directory = home / ".deepseek-cursor-proxy"
        self.directory.mkdir(parents=True)
        outbound = f"http://{plant}:{plant}@{plant}.example:3128"
        for name, value in {"HOME": home, "USERPROFILE": home, "USER": plant, "HTTPS_PROXY": outbound}.items():
            self.set_variable(name, str(value))
        self.set_variable("PLANTED_KEY", f"{plant}-4242424242")
        shown = 0
        for text in (
            f"{plant} = 1\n",
            f'"my {plant}" = 1\n',
            f"port = '{plant}'\n",
            f"port = {plant}\n",
            f"[upstreams.{plant}]\nbase_url = '{base}'\n[upstreams.{plant}]\n",
            f"[upstreams.{plant}]\nbase_url = '{base}'\nkey_env = ['{plant}_KEY']\nmodels = ['{plant}']\n",
            f"[upstreams.{plant}]\nbase_url = '{base}'\nkey_env = 'PLANTED_KEY'\n"
            f"[upstreams.direct]\nbase_url = 'https://{address}/v1'\n",
            f"[upstreams.'{plant} {plant}']\nbase_url = 5\n",
            f"[upstreams.main]\nbase_url = '{self.fake.url}/{plant}'\n{plant} = 3\n",
            f"[{plant}]\n{plant} = 1\n",
            f"[models]\n{plant} = '{plant}'\n",
            f"[passthrough.'{plant}*']\nbase_url = '{base}'\nkey_env = '{plant}'\n",
            f"[prices.'{plant}']\n{plant} = '{plant}'\n",
            f"public_hosts = ['{plant}.example', '*.{plant}']\n",
            f"host = '{plant}'\n",
            f"host = '{address}'\npublic_hosts = ['{plant} x']\n",
            f"base_url = '{self.fake.url}/{plant}'\nmodel = '{plant}'\n",
            f"reasoning_content_path = '{self.folder}/of-{plant}-files/x_{plant}.sqlite3'\n",
            f"trace_dir = '/proc/{plant}/x'\ntokenizer = '/{plant}-tokens.json'\n",
            f"store = 'redis://{plant}:{plant}@127.0.0.1:1/0'\ntokenizer = '{self.folder}/{plant}'\n",
            f"tunnel = '{plant}'\nadmin_key = '{plant} {plant}'\n",
        ):
            self.write_settings(text)
            # It is there for who runs it, but for what is a secret.
            shown += plant.lower() in self.doctor().out.lower() or address in self.doctor().out
            with self.subTest(text):
                report = self.doctor("--report").out
                self.assertNotIn(plant.lower(), report.lower())
                self.assertNotIn(address, report)
                self.assertNotIn("4242424242", report)
        self.assertGreater(shown, 14)

    def test_a_report_is_a_block_for_an_issue_and_keeps_what_helps(self) -> None:
        ran = self.doctor("--report")
        self.assertTrue(ran.out.startswith(f"```text\ndeepseek-cursor-proxy {__version__}\n"), ran.out)
        self.assertTrue(ran.out.endswith("```\n"))
        self.assertIn("127.0.0.1", ran.out)
        self.assertNotIn("110.00", ran.out)
        self.assertNotIn(str(self.home), ran.out)
