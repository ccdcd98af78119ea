import unittest

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.http1.own_hosts import Address, OwnHosts

OURS = OwnHosts(["mybox.lan", "", "proxy.example.com", "*.team.example"])

OWN_HOSTS = """
    127.0.0.1 127.0.0.1:9000 192.168.1.7 0.0.0.0:1 [::1] [::1]:9000 [fe80::1] 127.0.0.1. localhost LOCALHOST:9000
    localhost. Localhost.:80 a.localhost a.b.localhost:9000 mybox.lan MyBox.LAN:9000 proxy.example.com
    proxy.example.com.:443 a.team.example localhost:
"""
FOREIGN_HOSTS = """
    evil.example evil.example:9000 localhost.evil.example 127.0.0.1.evil.example xlocalhost evil.mybox.lan
    proxy.example.com.evil.example team.example ateam.example 127.1 0x7f.1 2130706433 %6cocalhost localhost..
    [::1].evil . localhost,evil evil@localhost
"""
OWN_ORIGINS = """
    http://localhost http://localhost:3000 https://LOCALHOST http://127.0.0.1:5173 http://[::1]:1
    http://app.localhost https://proxy.example.com http://10.0.0.7:3000 vscode-webview://0a1b2c
    vscode-file://vscode-app app://obsidian.md chrome-extension://abcdef tauri://localhost file://
"""
FOREIGN_ORIGINS = """
    null https://evil.example HTTPS://EVIL.EXAMPLE http://evil.example:9000 http://203.0.113.9 http://[2001:db8::9]
    http://localhost.evil.example https://a.team.example https://*.team.example ws://evil.example http:// localhost
    evil.example data: blob:http://localhost http://user@localhost http://localhost/path http://[::1
"""
ODD_ORIGINS = ["", " ", "http://localhost http://evil.example", "http://localhost, http://evil.example"]


class OwnHostsTest(unittest.TestCase):
    def test_a_host_is_recognised_whatever_its_port_case_and_final_dot(self) -> None:
        for host in (OWN_HOSTS + FOREIGN_HOSTS).split():
            with self.subTest(host):
                expected = f"Host: {host}" if host in FOREIGN_HOSTS.split() else None
                self.assertEqual(expected, OURS.foreign_part(Address((host,))))

    def test_every_host_that_a_request_names_has_to_be_ours(self) -> None:
        self.assertIsNone(OURS.foreign_part(Address(())))
        self.assertIsNone(OURS.foreign_part(Address(("localhost", "127.0.0.1:80"))))
        for hosts in (("localhost", "evil.example"), ("evil.example", "localhost")):
            self.assertEqual("Host: evil.example", OURS.foreign_part(Address(hosts)))

    def test_an_origin_of_an_app_or_of_our_own_page_is_accepted(self) -> None:
        for origin in OWN_ORIGINS.split() + FOREIGN_ORIGINS.split() + ODD_ORIGINS:
            with self.subTest(origin):
                expected = None if origin in OWN_ORIGINS.split() else f"Origin: {origin}"
                self.assertEqual(expected, OURS.foreign_part(Address(("10.0.0.7:9000",), origin)))

    def test_an_origin_in_a_shared_wildcard_domain_is_foreign(self) -> None:
        ours = OwnHosts(["*.trycloudflare.com"])
        for host in ("mine.trycloudflare.com", "127.0.0.1:9000"):
            theirs = Address((host,), "https://theirs.trycloudflare.com")
            self.assertEqual("Origin: https://theirs.trycloudflare.com", ours.foreign_part(theirs))
        own = Address(("mine.trycloudflare.com",), "https://mine.trycloudflare.com")
        self.assertIsNone(ours.foreign_part(own))

    def test_an_empty_host_name_accepts_no_host(self) -> None:
        self.assertEqual("Host: @", OwnHosts(["", ""]).foreign_part(Address(("@",))))


class PublicHostsTest(unittest.TestCase):
    def test_public_hosts_are_normalized(self) -> None:
        config = ProxyConfig(public_hosts="Proxy.Example.com., *.trycloudflare.com")  # type: ignore[arg-type]
        self.assertEqual(("proxy.example.com", "*.trycloudflare.com"), config.public_hosts)
        self.assertTrue(config.is_exposed)

    def test_a_bad_public_host_is_refused_with_an_example(self) -> None:
        for name in ("https://a.example", "a.example:443", "a.example/v1", "*", "*.", "", "-a", "a b", "é.example", 7):
            with self.subTest(name), self.assertRaisesRegex(StartupError, "public_hosts has .* proxy.example.com"):
                ProxyConfig(public_hosts=(name,))  # type: ignore[arg-type]
