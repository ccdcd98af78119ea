import unittest
from pathlib import Path

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.cli.serve import Addresses, welcome_text
from deepseek_cursor_proxy.config import ProxyConfig


class TestWelcome(unittest.TestCase):
    def welcome(self, host: str, public_url: str | None = None) -> str:
        config = ProxyConfig(host=host)
        return welcome_text(config, Path("x"), Addresses(9000, public_url), Access(config))

    def test_the_welcome_never_prints_a_wildcard_address(self) -> None:
        welcome = self.welcome("0.0.0.0")
        self.assertIn("OpenAI base URL            http://127.0.0.1:9000/v1 ", welcome)
        self.assertIn("from another machine       the address of this one in place of 127.0.0.1\n", welcome)
        self.assertNotIn("0.0.0.0", welcome)

    def test_an_engine_is_named_without_its_password(self) -> None:
        config = ProxyConfig(store="redis://ann:planted-secret@10.0.0.5:6379/0")
        text = welcome_text(config, Path("x"), Addresses(9000), Access(config))
        self.assertRegex(text, r"Reasoning +\S+, shared on redis://\S*10\.0\.0\.5")
        self.assertNotIn("planted-secret", text)

    def test_without_a_public_address_the_text_has_what_every_client_but_cursor_needs(self) -> None:
        welcome = self.welcome("127.0.0.1")
        self.assertRegex(welcome, r"\n  Start an agent +deepseek-cursor-proxy run claude\n")
        self.assertRegex(welcome, r"\n  Configure it for good +deepseek-cursor-proxy setup\n")
        self.assertIn("OpenAI base URL            http://127.0.0.1:9000/v1 ", welcome)
        self.assertIn("Anthropic base URL         http://127.0.0.1:9000 ", welcome)
        self.assertIn("restart with --tunnel", welcome)
        self.assertNotIn("Override OpenAI Base URL", welcome)

    def test_both_models_are_named_unless_the_settings_choose_one(self) -> None:
        host = {"upstream_base_url": "https://openrouter.ai/api/v1"}
        for settings, model in (
            ({}, "deepseek-flash, or deepseek-v4-pro for more money"),
            ({"upstream_model": "deepseek-flash"}, "deepseek-flash"),
            ({"upstream_model": "deepseek/deepseek-v4-pro", **host}, "deepseek/deepseek-v4-pro"),
            (host, "deepseek-v4-pro"),
        ):
            config = ProxyConfig(**settings)
            for url in (None, "https://x.ngrok.app"):
                text = welcome_text(config, Path("x"), Addresses(9000, url), Access(config))
                self.assertRegex(text, rf"\n  Model .*  {model}\n")

    def test_with_a_public_address_cursor_gets_it_and_others_the_local_one(self) -> None:
        welcome = self.welcome("127.0.0.1", "https://x.ngrok.app")
        self.assertIn(
            "In Cursor: Settings > Models, then\n  Override OpenAI Base URL   https://x.ngrok.app/v1\n", welcome
        )
        self.assertRegex(welcome, r"\n  Another agent +deepseek-cursor-proxy run claude\n")
        self.assertNotIn("--tunnel", welcome)

    def test_the_welcome_prints_only_the_url_of_a_tunnel(self) -> None:
        self.assertNotIn("another machine", self.welcome("0.0.0.0", "https://x.ngrok.app"))
