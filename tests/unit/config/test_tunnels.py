"""The settings `tunnel`, `tunnel_url` and `ngrok`, from every source."""

from deepseek_cursor_proxy.config import ProxyConfig
from tests.support.configs import ConfigTestCase


class TunnelSettingsTest(ConfigTestCase):
    def test_the_tunnel_to_open_follows_from_tunnel_and_ngrok(self) -> None:
        for tunnel, ngrok, program in (
            (None, False, None),
            (None, True, "ngrok"),
            ("off", True, None),
            ("off", False, None),
            ("on", True, "on"),
            (True, False, "on"),
            (False, True, None),
            ("cloudflared", True, "cloudflared"),
        ):
            with self.subTest(tunnel=tunnel, ngrok=ngrok):
                config = ProxyConfig(tunnel=tunnel, ngrok=ngrok)
                self.assertEqual(program, config.tunnel_program)
                self.assertIs(program is not None, config.is_exposed)

    def test_every_source_can_name_a_tunnel(self) -> None:
        for loaded, program in (
            (self.load('tunnel = "cloudflared"'), "cloudflared"),
            (self.load("tunnel = true"), "on"),
            (self.load('tunnel = ""\nngrok = true'), "ngrok"),
            (self.load(environment={"DEEPSEEK_CURSOR_PROXY_TUNNEL": "yes"}), "on"),
            (self.load('tunnel = "ngrok"', tunnel="off"), None),
            (self.load("ngrok = true", tunnel="off"), None),
            (self.load('tunnel = "ngrok"', tunnel="cloudflared"), "cloudflared"),
        ):
            self.assertEqual(program, loaded.config.tunnel_program)

    def test_a_tunnel_that_is_none_is_refused_with_those_there_are(self) -> None:
        for value in ("ngork", "NGROK", "cloudflared:x", "ssh"):
            self.assertIn("is not one of on, off, ngrok, cloudflared", self.refusal(tunnel=value))

    def test_the_address_of_a_tunnel_is_https_and_has_no_path(self) -> None:
        for value, url in (
            ("https://proxy.example.com", "https://proxy.example.com"),
            ("https://proxy.example.com/", "https://proxy.example.com"),
            ("https://proxy.example.com/v1", "https://proxy.example.com"),
            ("https://proxy.example.com/v1/", "https://proxy.example.com"),
            ("proxy.example.com", "https://proxy.example.com"),
            ("box.example.com:8443", "https://box.example.com:8443"),
            # A tunnel that ends on this machine, as in tests.
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ):
            self.assertEqual(url, self.load(tunnel_url=value).config.tunnel_url)
        self.assertIsNone(self.load('tunnel_url = ""').config.tunnel_url)

    def test_an_address_that_cannot_be_one_is_refused(self) -> None:
        for value in ("http://proxy.example.com", "https://", "https://a/b", "https://u@a", "ftp://a", "a?x", "a b"):
            self.assertRegex(self.refusal(tunnel_url=value), "tunnel_url .* is not an https address")
