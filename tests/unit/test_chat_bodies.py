import json
import random
import unittest
from operator import is_
from typing import Any
from unittest.mock import patch

from deepseek_cursor_proxy import chat_memory, json_codec
from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import MAX_JSON_DEPTH, decode_json_object, encode_json


def chat(turns: int, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": f'Ünicode \U0001f600 {number} \\ " ] }} ,'} for number in range(turns)]
    return {"model": "m", "messages": said, **more}


def outcome(decode: Any, body: bytes) -> Any:
    try:
        return repr(decode(body))
    except BadRequest as error:
        return str(error), error.code


class Bodies:
    """Decodes bodies with a memory of its own, however short they are."""

    def __init__(self, max_bytes: int = 1_000_000) -> None:
        self.memory = ChatMemory(max_bytes, min_body_bytes=0)

    def decode(self, body: bytes) -> dict[str, Any]:
        value, chat = self.memory.decode(body)
        chat.keep()
        return value

    def known(self) -> list[Any]:
        return [chat.body for chat in self.memory.chats()]


class TestChatBodies(unittest.TestCase):
    def assert_read_alike(self, bodies: Bodies, body: bytes) -> None:
        self.assertEqual(outcome(decode_json_object, body), outcome(bodies.decode, body))

    def test_a_chat_that_grows_is_read_as_if_it_were_new(self) -> None:
        for forms in ({}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}):
            with self.subTest(forms):
                bodies = Bodies()
                for turns in (1, 2, 2, 3, 7, 4, 0, 5):
                    body = json.dumps(chat(turns, tools=[{"n": turns}], stream=True), **forms).encode()
                    self.assert_read_alike(bodies, body)

    def test_what_was_read_before_is_not_read_again(self) -> None:
        bodies = Bodies()
        before = bodies.decode(encode_json(chat(5)))
        with patch.object(chat_memory, "scan", side_effect=json_codec.scan) as scan:
            after = bodies.decode(encode_json(chat(6, stream=True)))
        self.assertEqual(chat(6, stream=True), after)
        self.assertTrue(all(map(is_, before["messages"], after["messages"])))
        # One message, a name and its value.
        self.assertEqual(3, scan.call_count)

    def test_fields_behind_the_messages_are_read_once_while_they_stay_the_same(self) -> None:
        bodies, tools = Bodies(), [{"n": "\U0001f600"}, {"n": "]}"}]
        before = bodies.decode(encode_json(chat(5, tools=tools)))
        for turns in (6, 6, 3):
            with patch.object(chat_memory, "scan", side_effect=json_codec.scan) as scan:
                after = bodies.decode(encode_json(chat(turns, tools=tools)))
            self.assertEqual(chat(turns, tools=tools), after)
            self.assertIs(before["tools"], after["tools"])
            self.assertLessEqual(scan.call_count, 1)
        self.assert_read_alike(bodies, encode_json(chat(7, tools=tools[:1])))
        self.assert_read_alike(bodies, encode_json(chat(7, tools=tools)) + b"}")

    def test_a_message_that_ends_like_the_last_body_is_no_end_of_the_messages(self) -> None:
        bodies = Bodies()
        self.assert_read_alike(bodies, b'{"messages":[[1],[2]]}')
        for body in (b'{"messages":[[1],[2],[3]}', b'{"messages":[[1],["2]}"]]}', b'{"messages":[[1],"]}', b"]}"):
            self.assert_read_alike(bodies, body)

    def test_items_are_known_again_like_messages(self) -> None:
        bodies = Bodies()
        five, six = ({"input": chat(turns)["messages"], "stream": True} for turns in (5, 6))
        before, after = (bodies.decode(encode_json(each)) for each in (five, six))
        self.assertEqual(six, after)
        self.assertTrue(all(map(is_, before["input"], after["input"])))
        # What is called otherwise is something else, whatever it says.
        self.assertEqual(chat(5), bodies.decode(encode_json(chat(5))))

    def test_fields_in_front_of_the_messages_count(self) -> None:
        bodies = Bodies()
        for model in ("a", "b", "a"):
            self.assertEqual(model, bodies.decode(encode_json({**chat(3), "model": model}))["model"])

    def test_a_damaged_body_is_told_about_as_ever(self) -> None:
        rng = random.Random(1)
        whole = encode_json(chat(6, tools=[1, {"a": [None, 1.5]}]))
        bodies = Bodies()
        for _ in range(600):
            bodies.decode(encode_json(chat(rng.randrange(1, 6))))
            at, inserted = rng.randrange(len(whole)), rng.choice([b"]", b"}", b",", b'"', b"\xff", b" "])
            for end in (b"", inserted + whole[at:], whole[at + 1 :]):
                self.assert_read_alike(bodies, whole[:at] + end)

    def test_unusual_bodies_are_read_alike(self) -> None:
        message = b'{"role":"user","content":"hi"}'
        for body in (
            *(b"", b"{}", b"[]", b"null", b'{"messages":[]}', b'{"messages":{}}', b'{"messages":null}'),
            b'\xef\xbb\xbf{"messages":[%b]}' % message,
            b' {"messages" : [ %b , %b ] , "a":1 } ' % (message, message),
            b'{"messages":[%b],"messages":[1]}' % message,
            b'{"a":1,"messages":[%b],"a":2}' % message,
            b'{"a":1,"a":2,"messages":[%b]}' % message,
            b'{"messages":[%b,]}' % message,
            b'{"messages":[%b] "a":1}' % message,
            b'{"messages":[%b],}' % message,
            b'{"messages":[%b]}x' % message,
            b'{1:2,"messages":[%b]}' % message,
            b'{"messages":[%b,NaN]}' % message,
            b'{"messages":[1,"a",[],1e999]}',
            b'{"input":[%b]}' % message,
            b'{"input":"hi","a":1}',
            b'{"input":[%b],"messages":[%b]}' % (message, message),
            b'{"messages":[%b],"input":[%b]}' % (message, message),
            b'{"input":"hi","messages":[%b,1]}' % message,
        ):
            with self.subTest(body):
                bodies = Bodies()
                for each in (body, b'{"messages":[%b]}' % message, body):
                    self.assert_read_alike(bodies, each)

    def test_depth_is_bounded_wherever_it_is_new(self) -> None:
        bodies = Bodies()
        bodies.decode(encode_json(chat(3)))
        for levels in (MAX_JSON_DEPTH - 3, MAX_JSON_DEPTH - 2, MAX_JSON_DEPTH - 1, MAX_JSON_DEPTH):
            deep: Any = 1
            for _ in range(levels):
                deep = [deep]
            for body in (chat(3, tools=deep), {"messages": [*chat(3)["messages"], deep]}, {"messages": [deep]}):
                with self.subTest(levels):
                    for _ in range(2):
                        self.assert_read_alike(bodies, encode_json(body))

    def test_a_long_chat_is_compared_in_a_few_pieces(self) -> None:
        bodies = Bodies()
        for turns in range(1, 100):
            bodies.decode(encode_json(chat(turns, stream=True)))
        (known,) = bodies.known()
        self.assertEqual(encode_json(chat(99))[:-2], b"".join(known.pieces))
        self.assertLessEqual(len(known.pieces), 8)

    def test_a_changed_message_is_read_again_with_all_after_it(self) -> None:
        for at in range(30):
            with self.subTest(at):
                bodies, body = Bodies(), chat(1)
                for turns in range(2, 30, 3):
                    body = chat(turns)
                    before = bodies.decode(encode_json(body))
                body["messages"][min(at, 28)] = {"role": "user", "content": "other"}
                after = bodies.decode(encode_json(body))
                self.assertEqual(body, after)
                same = [one is other for one, other in zip(before["messages"], after["messages"], strict=True)]
                self.assertEqual(min(at, 28), sum(same))

    def test_a_crowd_is_refused_however_it_came_about(self) -> None:
        bodies = Bodies()
        with patch.object(json_codec, "MAX_JSON_VALUES", 40), patch.object(chat_memory, "MAX_JSON_VALUES", 40):
            for count in range(1, 60, 3):
                self.assert_read_alike(bodies, encode_json({"messages": [1] * count, "tools": [2] * 7}))

    def test_a_body_that_cannot_be_remembered_is_parsed_in_one_go(self) -> None:
        for name, body, calls in (
            ("large", {"messages": ["x" * 20_000]}, 0),
            ("many", {"messages": [1] * 5009}, 5002),
        ):
            bodies = Bodies(2 * 59_000)
            with self.subTest(name), patch.object(chat_memory, "scan", side_effect=json_codec.scan) as scan:
                self.assertEqual(body, bodies.decode(encode_json(body)))
                self.assertEqual(calls, scan.call_count)
