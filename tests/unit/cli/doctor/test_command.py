import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli.doctor import (
    command,  # noqa: F401  (a report knows the words of the modules that are loaded)
    this_machine,
)
from deepseek_cursor_proxy.cli.doctor.command import Privacy, hide_keys
from deepseek_cursor_proxy.cli.doctor.subject import AdminFacts, Settings, Subject
from deepseek_cursor_proxy.cli.running_proxy import RunningProxy
from deepseek_cursor_proxy.config import ProxyConfig

UPSTREAMS = {"office": {"base_url": "https://llm.office.example/v1", "key_env": "OFFICE_KEY"}}


def subject(**settings: object) -> Subject:
    config = ProxyConfig(**settings)  # type: ignore[arg-type]
    proxy = RunningProxy("1", "http://127.0.0.1:9000/v1", "https://quiet-otter.example.app", "")
    admin = AdminFacts(Path("admin.key"), "absent", proxy=proxy)
    environment = {"HTTPS_PROXY": "http://u:p@outbound.example:3128", "OFFICE_KEY": "abcde-1, abcde-2"}
    return Subject(Settings(config, {}, ()), Path("config.toml"), environment, admin)


class PrivacyTest(unittest.TestCase):
    privacy: Privacy

    @classmethod
    def setUpClass(cls) -> None:
        cls.enterClassContext(mock.patch("os.path.expanduser", return_value="/home/trillian"))
        with mock.patch("socket.gethostname", return_value="laptop.example.net"):
            cls.privacy = Privacy({"USER": "report"})

    def test_what_is_private_is_replaced(self) -> None:
        rows = {
            "/home/trillian/.deepseek-cursor-proxy/config.toml": "~/.deepseek-cursor-proxy/config.toml",
            "/srv/trillian/store": "/…/…/store",
            "/home/trillian2 is another": "/home/… is another",
            "/data/of-trillian_x/store": "/data/…/store",
            # The user is called that, though it is a word of ours.
            "/data/report/store": "/data/…/store",
            "laptop answers": "… answers",
            "through outbound.acme.example:3128 (HTTPS_PROXY)": "through outbound.….example:3128 (HTTPS_PROXY)",
            "https://quiet-otter.example.app/v1": "https://….example.app/v1",
            "192.168.1.20:9000 is free": "…:9000 is free",
            "fe80::1 and [2001:db8::7]:443": "… and […]:443",
            'thinking = "my secret" is not one of': 'thinking = "…" is not one of',
            'thinking = "a"b" is not one of': 'thinking = "…" is not one of',
            "models = ['x', 'y'] is not a table": "models = ['…', '…'] is not a table",
            'public_hosts has "a b", which is not': 'public_hosts has "…", which is not',
            "base_url of [upstreams.acme]": "base_url of [upstreams.…]",
            'unknown key "hunter2"; did you mean "port"?': 'unknown key "…"; did you mean "port"?',
            'unknown key "my secret key" (config.toml)': 'unknown key "…" (config.toml)',
            "config.toml is not valid TOML: Cannot declare ('upstreams', 'acme-corp') twice (at line 3, column 9)": (
                "config.toml is not valid TOML: Cannot declare ('upstreams', '…') twice (at line 3, column 9)"
            ),
            "the check itself failed (ValueError: acme-corp at 123456789012)": (
                "the check itself failed (ValueError: … at …)"
            ),
            "ACME_KEY holds no key": "… holds no key",
            "it can be used (110.00 CNY, 2.5 USD)": "it can be used (… CNY, … USD)",
        }
        for text, expected in rows.items():
            self.assertEqual(expected, self.privacy.clean(text), text)

    def test_what_helps_is_kept(self) -> None:
        for text in (
            "api.deepseek.com reached: name, connection and TLS in 0.12 s",
            "make a new one at https://platform.deepseek.com/api_keys",
            "127.0.0.1:9000 is free; 0.0.0.0 and [::1]:9000 too", this_machine.check_python(subject())[0].text,
            "the store cannot be used: Permission denied", "https://openrouter.ai/api/v1",
            "3 requests, 2 tool calls; at 12:30:59",
        ):  # fmt: skip
            self.assertEqual(text, self.privacy.clean(text), text)

    def test_every_known_key_is_hidden_from_everybody(self) -> None:
        hide = hide_keys(subject(upstreams=UPSTREAMS), ("typed-key", None))
        self.assertEqual("*** *** *** x", hide("abcde-1 abcde-2 typed-key x"))
