import errno
import socket
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli.doctor import this_machine, upstreams
from deepseek_cursor_proxy.cli.doctor.subject import AdminFacts, Finding, Level, NamedKey, Settings, Subject
from deepseek_cursor_proxy.cli.doctor.upstreams import CheckedUpstream, KeyAnswer
from deepseek_cursor_proxy.config import ProxyConfig

NO_ADMIN = AdminFacts(Path("admin.key"), "absent")


def subject(admin: AdminFacts = NO_ADMIN, **settings: object) -> Subject:
    config = ProxyConfig(**settings)  # type: ignore[arg-type]
    return Subject(Settings(config, {}, ()), Path("config.toml"), {}, admin)


def list_upstreams(config: ProxyConfig, key: NamedKey | None, environment: dict[str, str]) -> list[CheckedUpstream]:
    return upstreams.list_upstreams(Subject(Settings(config, {}, ()), Path("x"), environment, NO_ADMIN, key))


class ListenersTest(unittest.TestCase):
    def check_port(self, port: int, error: Exception | None = None, problem: str = "no answer") -> Finding:
        with (
            mock.patch("socket.create_server", side_effect=error),
            mock.patch.object(this_machine, "_problem_at", return_value=problem),
        ):
            [found] = this_machine.check_port(subject(port=port))
        return found

    def test_every_state_of_a_port_has_a_finding(self) -> None:
        taken, denied = OSError(errno.EADDRINUSE, "in use"), PermissionError(errno.EACCES, "Permission denied")
        rows: list[tuple[Level, int, Exception | None, str]] = [
            (Level.FAILED, 0, None, "no answer"), (Level.FAILED, 80, None, "no answer"), (Level.GOOD, 80, taken, ""),
            (Level.GOOD, 80, denied, ""), (Level.FAILED, 80, taken, "something else answers"),
            (Level.FAILED, 80, denied, "no answer"), (Level.FAILED, 80, socket.gaierror(), "no answer"),
            (Level.FAILED, 80, UnicodeError(), "no answer"),
            (Level.FAILED, 80, OSError(errno.EADDRNOTAVAIL, "not ours"), "no answer"),
        ]  # fmt: skip
        for level, *state in rows:
            found = self.check_port(*state)
            self.assertEqual((level, level is not Level.GOOD), (found.level, bool(found.remedy)), state)
        self.assertIn("(Permission denied)", self.check_port(80, denied).text)
        self.assertIn("--port 9000", self.check_port(65535, taken).remedy)

    def test_the_port_that_is_suggested_is_free_and_not_that_of_the_dashboard(self) -> None:
        taken = OSError(errno.EADDRINUSE, "in use")
        with mock.patch("socket.create_server", side_effect=(taken, mock.DEFAULT)):
            self.assertEqual(9003, this_machine.free_port(ProxyConfig(port=9000, admin_port=9001)))

    def test_a_dashboard_with_a_key_of_the_settings_is_good(self) -> None:
        facts = AdminFacts(Path("admin.key"), "set", url="http://127.0.0.1:1", is_proven=True, status=401)
        rows = [
            (Level.GOOD, subject(facts)),
            (Level.FAILED, subject(facts._replace(key_state="private"))),
            (Level.SKIPPED, subject(facts, admin_port=0)),
        ]
        for level, each in rows:
            [found] = this_machine.check_dashboard(each)
            self.assertEqual(level, found.level)
            self.assertEqual(level is Level.FAILED, "started with an admin_key" in found.text)


class UpstreamTest(unittest.TestCase):
    def test_a_status_says_what_is_wrong_with_a_key(self) -> None:
        rows = {401: Level.FAILED, 402: Level.FAILED, 403: Level.FAILED, 429: Level.WARNING, 500: Level.WARNING}
        for status, level in {**rows, 200: Level.GOOD, 404: Level.SKIPPED}.items():
            found = upstreams.check_key("key", KeyAnswer("DEEPSEEK_API_KEY", status))
            self.assertEqual(level, found.level, status)
        found = upstreams.check_key("key", KeyAnswer("OTHER_KEY", 401))
        self.assertEqual("set OTHER_KEY to a valid key", found.remedy)

    def test_the_key_goes_to_deepseek_and_to_no_known_other_host(self) -> None:
        tables = {
            "main": {"base_url": "https://api.deepseek.com"},
            "router": {"base_url": "https://openrouter.ai/api/v1"},
            "own": {"base_url": "https://openrouter.ai/api/v1", "key_env": ["A_KEY", "B_KEY"]},
        }
        config = ProxyConfig(upstreams=tables)  # type: ignore[arg-type]
        main, router, own = list_upstreams(config, NamedKey("", "sk-mine"), {"A_KEY": "sk-1,sk-2"})
        self.assertEqual((NamedKey("", "sk-mine"),), main.keys)
        self.assertEqual(((), True), (router.keys, bool(router.why_no_key)))
        self.assertEqual([("A_KEY", "sk-1"), ("A_KEY", "sk-2")], list(own.keys))
        self.assertEqual(("B_KEY",), own.empty_variables)

    def test_the_key_of_the_environment_goes_to_another_host_only_if_the_proxy_holds_it(self) -> None:
        held, typed = NamedKey("DEEPSEEK_API_KEY", "sk-1"), NamedKey("", "sk-2")
        url = "https://openrouter.ai/api/v1"
        other = ProxyConfig(upstream_base_url=url)
        holding = ProxyConfig(upstream_base_url=url, access_keys=("sk-0123456789abcdef",))  # type: ignore[arg-type]
        rows = [(ProxyConfig(), held), (other, typed), (holding, held)]
        for config, key in rows:
            self.assertEqual((key,), list_upstreams(config, key, {})[0].keys)
        [refused] = list_upstreams(other, held, {"DEEPSEEK_API_KEY": "sk-1"})
        self.assertEqual(((), "DEEPSEEK_API_KEY is sent to DeepSeek only"), (refused.keys, refused.why_no_key))
        self.assertEqual(["openrouter.ai"], upstreams.key_hosts(other))

    def test_the_model_of_the_settings_is_looked_for_at_each_upstream_that_serves_it(self) -> None:
        tables = {
            "main": {"base_url": "https://api.deepseek.com"},
            "router": {"base_url": "https://openrouter.ai/api/v1", "models": {"deepseek-*": "deepseek/deepseek-*"}},
            "flash": {"base_url": "http://127.0.0.1:1", "models": ["deepseek-flash"]},
        }
        found = list_upstreams(ProxyConfig(upstreams=tables), None, {})  # type: ignore[arg-type]
        expected = [("deepseek-v4-pro",), ("deepseek/deepseek-v4-pro",), ("deepseek-flash",)]
        self.assertEqual(expected, [each.models for each in found])

    def test_older_names_and_suffixes_are_looked_for_as_they_are_listed(self) -> None:
        config = ProxyConfig(models={"a": "deepseek-v4-flash", "b": "deepseek-v4-pro-high"})
        [found] = list_upstreams(config, None, {})
        self.assertEqual(("deepseek-v4-pro", "deepseek-flash"), found.models)
