"""The printed address is one that clients can connect to."""

import socket
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.cli import welcome
from deepseek_cursor_proxy.cli.welcome import Addresses, reachable_hosts, welcome_text
from deepseek_cursor_proxy.config import ProxyConfig


class TestReachableHosts(unittest.TestCase):
    def test_the_reachable_host_of_an_ordinary_address_is_itself(self) -> None:
        for host, expected in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("my-machine", "my-machine")):
            self.assertEqual([expected], reachable_hosts(host))

    def test_the_reachable_hosts_of_a_wildcard_are_loopback_and_the_network_address(self) -> None:
        for host, own, outside, expected in (
            ("0.0.0.0", "127.0.0.1", "192.168.1.7", "192.168.1.7"),
            ("::", "[::1]", "2001:db8::7", "[2001:db8::7]"),
            ("0:0:0:0:0:0:0:0", "[::1]", "2001:db8::7", "[2001:db8::7]"),
        ):
            with mock.patch.object(welcome, "_sending_address", return_value=outside):
                self.assertEqual([own, expected], reachable_hosts(host))

    def test_without_a_network_the_reachable_host_of_a_wildcard_is_loopback(self) -> None:
        with mock.patch("socket.socket.connect", side_effect=OSError(101, "Network is unreachable")):
            self.assertEqual(["127.0.0.1"], reachable_hosts("0.0.0.0"))
            self.assertEqual(["[::1]"], reachable_hosts("::"))

    def test_every_reachable_host_accepts_a_connection(self) -> None:
        for host, family in (("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)):
            with self.subTest(host):
                try:
                    listener = socket.create_server((host, 0), family=family)
                except OSError as error:
                    self.skipTest(f"{host}: {error}")
                with listener:
                    for each in reachable_hosts(host):
                        address = (each.strip("[]"), listener.getsockname()[1])
                        socket.create_connection(address, 15).close()


class TestWelcome(unittest.TestCase):
    def welcome(self, host: str, public_url: str | None = None) -> str:
        config = ProxyConfig(host=host)
        with mock.patch.object(welcome, "_sending_address", return_value="192.168.1.7"):
            return welcome_text(config, Path("x"), Addresses(9000, public_url), Access(config))

    def test_the_welcome_never_prints_a_wildcard_address(self) -> None:
        welcome = self.welcome("0.0.0.0")
        self.assertIn("Override OpenAI Base URL   http://127.0.0.1:9000/v1\n", welcome)
        self.assertIn("from another machine       http://192.168.1.7:9000/v1\n", welcome)
        self.assertNotIn("0.0.0.0", welcome)

    def test_the_welcome_prints_only_the_url_of_a_tunnel(self) -> None:
        self.assertNotIn("192.168", self.welcome("0.0.0.0", "https://x.ngrok.app"))
