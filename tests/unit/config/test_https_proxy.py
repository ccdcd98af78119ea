import base64
import unittest

from deepseek_cursor_proxy.config import https_proxy
from deepseek_cursor_proxy.config.https_proxy import OutboundProxy, for_host, from_environment, is_exempt
from deepseek_cursor_proxy.errors import StartupError


class FromEnvironmentTest(unittest.TestCase):
    def test_https_proxy_is_parsed_in_all_usual_forms(self) -> None:
        for value, host, port in (
            ("http://proxy.example:3128", "proxy.example", 3128),
            ("http://proxy.example:3128/", "proxy.example", 3128), ("HTTP://Proxy.Example", "proxy.example", 80),
            ("proxy.example:8080", "proxy.example", 8080), ("127.0.0.1:8080", "127.0.0.1", 8080),
            ("http://[::1]:8080", "::1", 8080),
        ):  # fmt: skip
            self.assertEqual(OutboundProxy(host, port), from_environment({"HTTPS_PROXY": value}), value)

    def test_without_https_proxy_there_is_no_proxy(self) -> None:
        for environment in ({}, {"HTTPS_PROXY": ""}, {"HTTPS_PROXY": " "}):
            self.assertIsNone(from_environment(environment))

    def test_only_https_proxy_counts_and_lower_case_wins(self) -> None:
        others = {"HTTP_PROXY": "http://a:1", "http_proxy": "http://a:1", "ALL_PROXY": "http://a:1"}
        self.assertIsNone(from_environment({**others, "all_proxy": "http://a:1"}))
        both = {"HTTPS_PROXY": "http://upper:1", "https_proxy": "http://lower:1"}
        self.assertEqual("lower:1", str(from_environment(both)))

    def test_proxy_credentials_become_a_header_and_are_not_printed(self) -> None:
        proxy = from_environment({"HTTPS_PROXY": "http://me:p%40ss%2Fw@proxy.example:3128"})
        assert proxy is not None
        self.assertEqual("Basic " + base64.b64encode(b"me:p@ss/w").decode(), proxy.authorization)
        self.assertEqual("proxy.example:3128", str(proxy))

    def test_an_unusable_https_proxy_is_refused_without_repeating_it(self) -> None:
        schemes = ("socks5://me:secret@proxy:1080", "socks5h://proxy:1080", "https://me:secret@proxy", "ftp://proxy")
        ports = (f"http://me:secret@proxy:{port}" for port in ("99999", "0", "port"))
        for value in (*schemes, *ports, "ev\x1bil://proxy", "http://me:secret@", "http://[::1", "http://pro xy:1"):
            with self.subTest(value), self.assertRaises(StartupError) as caught:
                from_environment({"HTTPS_PROXY": value})
            message = str(caught.exception)
            self.assertTrue(message.startswith("config: HTTPS_PROXY ") and message.isprintable(), message)
            self.assertIn("correct or unset it", message)
            self.assertNotIn("secret", message)


class ExemptionTest(unittest.TestCase):
    def test_no_proxy_exempts_hosts_domains_and_networks(self) -> None:
        lists = ("other.test, DEEPSEEK.com", "other.test deepseek.com")
        hosts = ("*", "api.deepseek.com", "deepseek.com", ".deepseek.com", "*.deepseek.com", "deepseek.com:443", *lists)
        others = ("", ",,", "seek.com", "api.deepseek.com.evil.test", "deepseek.com:8443", "10.0.0.0/8")
        for host, is_expected, *entries in (
            ("api.deepseek.com", True, *hosts), ("api.deepseek.com", False, *others),
            ("10.1.2.3", True, "10.0.0.0/8", "10.1.2.3"), ("10.1.2.3", False, "2.3"),
            ("11.1.2.3", False, "10.0.0.0/8"), ("2001:db8::1", True, "[2001:db8::1]:443", "2001:db8::/32"),
        ):  # fmt: skip
            for exemptions in entries:
                self.assertEqual(is_expected, is_exempt(host, 443, exemptions), (exemptions, host))

    def test_this_machine_is_never_called_through_a_proxy(self) -> None:
        environment = {"HTTPS_PROXY": "http://proxy:1"}
        for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1"):
            self.assertIsNone(for_host(host, 443, environment))
        self.assertIsNotNone(for_host("api.deepseek.com", 443, environment))
        self.assertIsNone(for_host("api.deepseek.com", 443, {**environment, "no_proxy": "deepseek.com"}))


class LocalUrlTest(unittest.TestCase):
    def test_the_address_is_one_that_a_browser_can_open(self) -> None:
        for host, url in (
            ("127.0.0.1", "http://127.0.0.1:9001"), ("0.0.0.0", "http://127.0.0.1:9001"),
            ("::1", "http://[::1]:9001"), ("::", "http://[::1]:9001"),
        ):  # fmt: skip
            self.assertEqual(url, https_proxy.local_url(host, 9001))
