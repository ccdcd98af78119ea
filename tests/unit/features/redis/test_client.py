import unittest

from deepseek_cursor_proxy.features.redis.client import Redirection, _owners, key_of, redirection, slot_of
from deepseek_cursor_proxy.features.redis.connection import Node, RedisRefused, ReplyError


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
        self.assertEqual(b"k", key_of((b"EVALSHA", b"sha", b"1", b"k", b"x")))
        self.assertIsNone(key_of((b"PING",)))

    def test_redirections_are_read(self) -> None:
        asked = Node("10.0.0.1", 1)
        for text, host in (("10.0.0.2:7", "10.0.0.2"), (":7", "10.0.0.1"), ("[::1]:7", "::1"), ("::1:7", "::1")):
            for word in ("MOVED", "ASK"):
                expected = Redirection(Node(host, 7), is_once=word == "ASK")
                self.assertEqual(expected, redirection(ReplyError(f"{word} 3999 {text}"), asked))
        for text in ("MOVED", "MOVED 1 h", "ERR h:1", "ASK 1 h:x", "MOVED 1 h:99999"):
            self.assertIsNone(redirection(ReplyError(text), asked), text)

    def test_a_node_that_does_not_know_its_name_is_the_one_that_was_asked(self) -> None:
        asked = Node("10.0.0.1", 1)
        for host in (None, b"", b"?"):
            owners = _owners([[0, 16383, [host, 7000, b"id"]]], asked)
            self.assertEqual({Node("10.0.0.1", 7000)}, {*owners})

    def test_a_map_with_holes_and_one_that_is_none(self) -> None:
        asked = Node("h", 1)
        owners = _owners([[1, 2, [b"a", 1], [b"replica", 2]]], asked)
        self.assertEqual([None, Node("a", 1), Node("a", 1), None], owners[:4])
        wrong = [[[1]], [[2, 1, [b"a", 1]]], [[0, 16384, [b"a", 1]]], [[0, 1, []]], [None], [[b"0", 1, [b"a", 1]]]]
        for ranges in wrong:
            with self.subTest(ranges), self.assertRaises(RedisRefused):
                _owners(ranges, asked)  # type: ignore[arg-type]
