import unittest

from deepseek_cursor_proxy.storage.resp.address import Node
from deepseek_cursor_proxy.storage.resp.cluster import key_of, redirection, slot_of
from deepseek_cursor_proxy.storage.resp.protocol import KeyedCommand, ReplyError


class TestSlots(unittest.TestCase):
    def test_the_slot_is_a_checksum_of_the_key_or_its_tag(self) -> None:
        # The vectors of the cluster specification, and of CLUSTER KEYSLOT.
        self.assertEqual(0x31C3, slot_of(b"123456789"))
        self.assertEqual(12182, slot_of(b"foo"))
        self.assertEqual(slot_of(b"user1000"), slot_of(b"{user1000}.following"))
        self.assertEqual(slot_of(b"{bar"), slot_of(b"foo{{bar}}zap"))
        self.assertEqual(slot_of(b"bar"), slot_of(b"foo{bar}{zap}"))
        # Empty or open braces are no tag.
        self.assertNotEqual(slot_of(b""), slot_of(b"foo{}{bar}"))
        self.assertEqual(8363, slot_of(b"foo{}{bar}"))
        self.assertNotEqual(slot_of(b"bar"), slot_of(b"{bar"))

    def test_the_key_of_a_command(self) -> None:
        self.assertEqual(b"k", key_of((b"GET", b"k")))
        self.assertEqual(b"k", key_of((b"evalsha", b"sha", b"1", b"k", b"x")))
        self.assertEqual(b"k", key_of(KeyedCommand((b"WAIT", b"1", b"10"), b"k")))
        self.assertIsNone(key_of((b"PING",)))

    def test_redirections_are_read(self) -> None:
        asked = Node("10.0.0.1", 1)
        for text, host in (
            ("10.0.0.2:7000", "10.0.0.2"),
            (":7000", "10.0.0.1"),
            ("[::1]:7000", "::1"),
            ("::1:7000", "::1"),
        ):
            found = redirection(ReplyError(f"MOVED 3999 {text}"), asked)
            self.assertEqual(
                (3999, Node(host, 7000), False), (found.slot, found.node, found.is_once) if found else None
            )
        for text in ("MOVED", "MOVED x h:1", "MOVED 99999 h:1", "MOVED 1 h", "ERR no", "ASK 1 h:x"):
            self.assertIsNone(redirection(ReplyError(text), asked), text)
