import gc
import itertools
import json
import random
import unittest
import weakref
from typing import Any
from unittest.mock import patch

from deepseek_cursor_proxy import chat_memory, json_codec
from deepseek_cursor_proxy.chat_memory import Chat, ChatMemory, Stage
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import MAX_JSON_DEPTH, decode_json_object, encode_json
from tests.support.traced_memory import traced_memory

STAGE: Stage[Any, str] = Stage("test")
OTHER: Stage[Any, str] = Stage("other")


def body(name: object, turns: int, size: int = 10) -> bytes:
    return encode_json({"messages": [f"{name}: {turn}" + "x" * size for turn in range(turns)]})


class ChatMemoryTest(unittest.TestCase):
    def setUp(self) -> None:
        self.memory = ChatMemory(1_000_000, min_body_bytes=0)

    def request(self, name: object, turns: int = 3, size: int = 10, stored: int = 0) -> bool:
        """Send a chat through one stage; whether that knew it."""
        value, chat = self.memory.decode(body(name, turns, size))
        lookup = chat.look_up(STAGE, value["messages"])
        lookup.store(f"{name}, {turns} turns", stored)
        chat.keep()
        return lookup.count > 0

    def open(self, name: object, turns: int) -> tuple[Chat, list[str]]:
        value, chat = self.memory.decode(body(name, turns))
        return chat, value["messages"]

    def held(self) -> int:
        return sum(chat.size for chat in self.memory.chats())

    def test_a_stage_continues_from_its_result_for_the_last_request(self) -> None:
        self.request("a", 3)
        chat, messages = self.open("a", 5)
        lookup = chat.look_up(STAGE, messages)
        self.assertEqual((3, "a, 3 turns"), (lookup.count, lookup.result))
        self.assertEqual(0, chat.look_up(STAGE, messages[1:]).count)
        self.assertEqual(0, chat.look_up(STAGE, messages[:2]).count)

    def test_stages_and_conditions_have_results_of_their_own(self) -> None:
        chat, messages = self.open("a", 3)
        chat.look_up(STAGE, messages, "one").store("one's")
        self.assertEqual("one's", chat.look_up(STAGE, messages, "one").result)
        self.assertIsNone(chat.look_up(STAGE, messages, "other").result)
        self.assertIsNone(chat.look_up(OTHER, messages, "one").result)

    def test_equal_messages_are_the_same_and_equal_json_values_are_not(self) -> None:
        chat, _ = self.open("a", 3)
        known = [[number] for number in range(9)]
        for stage, count in ((STAGE, 9), (Stage[Any, str]("json", is_of_json=True), 0)):
            chat.look_up(stage, known).store("known")
            self.assertEqual(9, chat.look_up(stage, known).count)
            self.assertEqual(count, chat.look_up(stage, [each.copy() for each in known]).count)
            self.assertEqual(0, chat.look_up(stage, [*known[:8], [9]]).count)

    def test_a_request_that_is_not_kept_leaves_nothing(self) -> None:
        chat, messages = self.open("a", 3)
        chat.look_up(STAGE, messages).store("parsed, then refused")
        self.assertEqual([], self.memory.chats())

    def test_a_chat_that_was_replaced_is_freed(self) -> None:
        """Each chat held the one before it: a long chat all of its requests."""
        self.request("a", 3)
        first = weakref.ref(self.memory.chats()[0])
        for turns in (4, 5, 6):
            self.request("a", turns)
        gc.collect()
        self.assertIsNone(first())

    def test_a_request_that_names_its_history_finds_the_chat_of_the_response(self) -> None:
        chat, messages = self.open("a", 3)
        chat.look_up(STAGE, messages).store("three")
        chat.name("resp_1")
        chat.keep()
        self.assertEqual(0, self.memory.open_response("resp_2").look_up(STAGE, messages).count)
        following = self.memory.open_response("resp_1")
        self.assertEqual("three", following.look_up(STAGE, messages).result)
        following.keep()
        self.assertEqual([following], self.memory.chats())

    def test_all_chats_share_one_budget_and_the_least_recently_used_leave(self) -> None:
        self.memory = ChatMemory(1_000_000, itertools.count(0, 60).__next__, min_body_bytes=0)
        for number in range(60):
            self.request(number, stored=30_000)
            self.request("often", stored=30_000)
            self.assertLessEqual(self.held(), 1_000_000)
        self.assertTrue(self.request("often", stored=30_000))
        known = [chat.entries[STAGE].result for chat in self.memory.chats()]  # type: ignore[union-attr]
        self.assertEqual([*(f"{number}, 3 turns" for number in range(61 - len(known), 60)), "often, 3 turns"], known)
        self.assertLess(20, len(known))

    def test_the_number_of_chats_is_bounded_too(self) -> None:
        self.memory = ChatMemory(10**9, min_body_bytes=0)
        for number in range(100):
            self.request(number)
        self.assertEqual(chat_memory._MAX_CHATS, len(self.memory.chats()))

    def test_a_chat_that_is_too_large_evicts_nothing(self) -> None:
        self.request("small")
        self.request("large", stored=600_000)
        self.request("long", size=300_000)
        self.assertTrue(self.request("small"))
        self.assertEqual(1, len(self.memory.chats()))

    def test_the_bound_counts_all_that_the_chats_hold(self) -> None:
        """In strings of one, two and four bytes a character, in small values, and in what leaves with a chat."""
        wide = "\U0001f600" + "x" * 500
        for name, message in (("ascii", "x" * 2000), ("wide", wide), ("escaped", wide), ("small", [{"a": 1}] * 20)):
            with self.subTest(name), traced_memory() as traced:
                memory = ChatMemory(2_000_000, itertools.count(0, 60).__next__, min_body_bytes=0)
                for number in range(25):
                    messages = [f"{name} {number}", *[message] * 60]
                    body = json.dumps({"messages": messages}, ensure_ascii=name == "escaped").encode()
                    value, chat = memory.decode(body)
                    copies = [encode_json(each) for each in value["messages"]]
                    chat.look_up(STAGE, value["messages"]).store("", 0)
                    chat.look_up(OTHER, value["messages"]).store(copies, sum(map(len, copies)))  # type: ignore[arg-type]
                    chat.keep()
                    del value, chat, copies
                self.assertLess(1, len(memory.chats()))
                self.assertLess(traced.held(), 2_000_000)


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

    def test_long_messages_are_read_in_slices_as_if_they_were_new(self) -> None:
        with patch.object(json_codec, "LONG_TEXT", 5), patch.object(chat_memory, "_SLICE", 3):
            self.test_a_chat_that_grows_is_read_as_if_it_were_new()
            self.test_a_crowd_is_refused_however_it_came_about()
            self.test_characters_and_their_escapes_are_read_alike_side_by_side()
            bodies = Bodies()
            bodies.decode(encode_json(chat(2)))
            self.assertEqual(1, len(bodies.known()))

    def test_a_chat_that_is_too_long_to_keep_is_read_alike(self) -> None:
        bodies = Bodies(1000)
        self.assert_read_alike(bodies, encode_json(chat(10)))
        self.assertEqual([], bodies.known())

    def test_a_body_that_is_not_kept_is_held_as_text_and_as_values_alone(self) -> None:
        for name, end in (("one message", b"]}"), ("unusual", b'],"a":1,"a":1}'), ("many", b',""' * 5000 + b"]}")):
            body = b'{"messages":["' + "\U0001f600".encode() + b"x" * 1_000_000 + b'"' + end
            with self.subTest(name), traced_memory() as traced:
                ChatMemory(1_000_000).decode(body)
                self.assertLess(traced.peak(), 9_000_000)

    def test_an_emoji_in_one_message_makes_no_other_wider(self) -> None:
        body = encode_json({"messages": ["\U0001f600", *["x" * 100_000] * 10]})
        with traced_memory() as traced:
            ChatMemory(1_000_000).decode(body)
            # The text, and the values.
            self.assertLess(traced.peak(), 2_500_000)

    def test_characters_and_their_escapes_are_read_alike_side_by_side(self) -> None:
        texts = (
            "é",
            "\\u00e9",
            "Ã©",
            "\\u00c3\\u00a9",
            "\U0001f600",
            "\\ud83d\\ude00",
            "\\ud83d",
            "\\\\u00e9",
            "\x80\u0100",
        )
        for one, other in itertools.product(texts, texts):
            bodies, message = Bodies(), f'{{"{one}":["{one}{other}",{{"{other}":1.5}}]}}'
            with self.subTest(message):
                for body in (
                    f'{{"{one}":"{other}","messages":[{message}],"{other}x":"{one}"}}',
                    f'{{"input":[{message}]}}',
                ):
                    for each in (body, body.replace("[{", '["' + other + '",{', 1), body):
                        self.assert_read_alike(bodies, each.encode())

    def test_a_message_that_ends_like_the_last_body_is_no_end_of_the_messages(self) -> None:
        bodies = Bodies()
        self.assert_read_alike(bodies, b'{"messages":[[1],[2]]}')
        for body in (b'{"messages":[[1],[2],[3]}', b'{"messages":[[1],["2]}"]]}', b'{"messages":[[1],"]}', b"]}"):
            self.assert_read_alike(bodies, body)

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

    def test_a_crowd_is_refused_however_it_came_about(self) -> None:
        crowds: tuple[Any, ...] = (1, [], {}, [0, 0], {"a": [[]]}, "[,,")
        with patch.object(json_codec, "MAX_JSON_VALUES", 40), patch.object(chat_memory, "MAX_JSON_VALUES", 40):
            for message in crowds:
                bodies = Bodies()
                for count in range(1, 60, 3):
                    many = [message] * count
                    self.assert_read_alike(bodies, encode_json({"messages": many, "tools": [2] * 7}))
                    self.assert_read_alike(bodies, encode_json({"tools": [2] * 7, "messages": many}))
