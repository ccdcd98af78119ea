import unittest
from pathlib import Path

from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.features.redis.connection import Node, RedisAddress

_CERTIFICATE = Path(__file__).parents[3] / "wire" / "tls_test_only_certificate.pem"


class TestEngineAddress(unittest.TestCase):
    def test_one_server(self) -> None:
        address = RedisAddress.parse("redis://localhost")
        self.assertEqual((Node("localhost", 6379),), address.nodes)
        self.assertEqual(((), 0, False), (address.login, address.database, address.has_tls))
        address = RedisAddress.parse("rediss://ann:p%40s%3A@[::1]:7000/3")
        self.assertEqual((Node("::1", 7000),), address.nodes)
        self.assertEqual(((b"ann", b"p@s:"), 3, True), (address.login, address.database, address.has_tls))
        self.assertEqual("[::1]:7000", str(address.nodes[0]))

    def test_a_password_alone_belongs_to_the_default_user(self) -> None:
        self.assertEqual((b"default", b"pw"), RedisAddress.parse("valkey://:pw@h").login)

    def test_a_cluster(self) -> None:
        address = RedisAddress.parse("valkeys://a,b:7001/?cluster=1")
        self.assertTrue(address.is_cluster and address.has_tls)
        self.assertEqual((Node("a", 6379), Node("b", 7001)), address.nodes)

    def test_a_certificate_authority_needs_tls_and_a_file(self) -> None:
        self.assertEqual(str(_CERTIFICATE), RedisAddress.parse(f"rediss://h/?ca={_CERTIFICATE}").authorities)
        self.assert_refused(f"redis://h/?ca={_CERTIFICATE}", "rediss://")
        self.assert_refused("rediss://h/?ca=/no/such/file", "is no file")

    def test_no_text_has_the_password_in_it(self) -> None:
        address = RedisAddress.parse("redis://ann:hunter2@h:1/0")
        self.assertEqual("redis://ann:***@h:1/0", str(address))
        self.assertNotIn("hunter2", repr(address))
        for url in (
            "http://ann:hunter2@h", "redis://ann:hunter2@h:x", "redis://ann:hunter2@h/?x=1", "redis://:hun/ter2@h",
        ):  # fmt: skip
            self.assertNotIn("ter2", self.assert_refused(url, "address"), url)

    def test_what_is_wrong_is_said_with_the_remedy(self) -> None:
        self.assert_refused("h:6379", "redis://")
        self.assert_refused("http://h", "redis://")
        self.assert_refused("redis://", "host")
        self.assert_refused("redis://h:0", "host")
        self.assert_refused("redis://h:65536", "host")
        self.assert_refused("redis://a,,b/?cluster=1", "host")
        self.assert_refused("redis://[::1", "no URL")
        self.assert_refused("redis://h/one", "number")
        self.assert_refused("redis://h/-1", "number")
        self.assert_refused("redis://h/?db=1", "cluster=1 and ca=FILE")
        self.assert_refused("redis://h/?cluster", "no URL")
        self.assert_refused("redis://a,b", "add ?cluster=1")
        self.assert_refused("redis://a,b/1?cluster=1", "leave it out")

    def assert_refused(self, url: str, words: str) -> str:
        with self.assertRaises(StartupError) as caught:
            RedisAddress.parse(url)
        self.assertIn(words, str(caught.exception))
        return str(caught.exception)
