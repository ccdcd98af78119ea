"""Histories, keys and ids that a caller forges to get another's reasoning: none shares a key with the real ones.

The same laws as in tests/laws, against a caller that knows how turns are identified. A key, a history or an id must
tell the two apart.
"""

import json
import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import UNNAMED, ChatName, Message
from deepseek_cursor_proxy.json_codec import decode_json_object, encode_json
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, NOTICE
from tests.support.histories import TOOLS

Json = dict[str, Any]

SHORT_ID, LONG_ID = "call_1", "call_00_a1B2c3D4e5F6g7H8i9J0"
KEY = "sk-Abcdefghijklmnopqrstuvwxyz0123456789"
FAKE_BLOCK = f"{COLLAPSIBLE.opening}made up{COLLAPSIBLE.closing}rest"


def user(content: Any, **more: Any) -> Json:
    return {"role": "user", "content": content, **more}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def said(text: str = "", *calls: tuple[str, str, str]) -> Json:
    written = [{"id": each, "type": "function", "function": {"name": n, "arguments": a}} for each, n, a in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": written} if calls else {})}


def result(call_id: str, text: str = "ok") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def picture(url: str) -> Json:
    return {"type": "image_url", "image_url": {"url": url}}


def one_call(arguments: str = "{}", name: str = "read_file", call_id: str = "c1", answer: str = "ok") -> list[Json]:
    return [user("q"), said("", (call_id, name, arguments)), result(call_id, answer)]


# Two histories that a lossy form would take for one another; each stands behind the same opening.
PAIRS: dict[str, tuple[list[Json], list[Json]]] = {
    "two pictures": ([user([picture("data:image/png;base64,AAAA")])], [user([picture("data:image/png;base64,BBBB")])]),
    "two remote pictures": ([user([picture("http://a/1")])], [user([picture("http://a/2")])]),
    "pictures in another order": (
        [user([picture("http://a/1"), picture("http://a/2")])],
        [user([picture("http://a/2"), picture("http://a/1")])],
    ),
    "a picture and its words": ([user([picture("http://a/1")])], [user("[image: http://a/1]")]),
    "a picture and its JSON": ([user([picture("http://a/1")])], [user(json.dumps([picture("http://a/1")]))]),
    "two files": (
        [user([{"type": "file", "file": {"file_id": "f1"}}])],
        [user([{"type": "file", "file": {"file_id": "f2"}}])],
    ),
    "where one message ends": ([user("ab"), user("c")], [user("a"), user("bc")]),
    "where one message ends, with an answer between": (
        [user("ab"), said("x"), user("c")],
        [user("a"), said("x"), user("bc")],
    ),
    "one message or two": ([user("a\nb")], [user("a"), user("b")]),
    "one message or two, without a break": ([user("ab")], [user("a"), user("b")]),
    "the same said twice": ([user("q"), user("q")], [user("q")]),
    "an answer twice": ([user("q"), said("a"), said("a"), user("n")], [user("q"), said("a"), user("n")]),
    "an empty message more": ([user("q"), user("")], [user("q")]),
    "who said it": ([user("a"), said("b"), user("q")], [user("a"), user("b"), user("q")]),
    "who said it, in words": ([user("a\n\nassistant: b"), user("q")], [user("a"), said("b"), user("q")]),
    "the end of the JSON": ([user('a"},{"role":"user","content":"b')], [user("a"), user("b")]),
    "composed and decomposed": ([user("caf\u00e9")], [user("cafe\u0301")]),
    "a ligature": ([user("\ufb01le")], [user("file")]),
    "capital letters": ([user("Hello")], [user("hello")]),
    "the Turkish i": ([user("\u0130")], [user("i\u0307")]),
    "letters that look alike": ([user("a")], [user("\u0430")]),
    "a character without width": ([user("ab")], [user("a\u200bb")]),
    "a direction": ([user("a")], [user("\u202ea")]),
    "a space that does not break": ([user("a b")], [user("a\u00a0b")]),
    "a space behind": ([user("q")], [user("q ")]),
    "a space in front": ([user("q")], [user(" q")]),
    "line ends": ([user("a\nb")], [user("a\r\nb")]),
    "a NUL": ([user("a\0b")], [user("ab")]),
    "lone surrogates": ([user("\ud800")], [user("\ud801")]),
    "a lone surrogate and its replacement": ([user("\ud800")], [user("\ufffd")]),
    "numbers as text": ([user("1")], [user("1.0")]),
    "names": ([user("q", name="bob")], [user("q", name="eve")]),
    "a name and none": ([user("q", name="bob")], [user("q")]),
    "a name inside the text": ([user("q", name="bob")], [user("bob: q")]),
    "parts joined otherwise": ([user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], [user("ab")]),
    "results": (one_call(answer="one"), one_call(answer="two")),
    "results exchanged": (
        [user("q"), said("", ("c1", "f", "{}"), ("c2", "f", "{}")), result("c1", "x"), result("c2", "y")],
        [user("q"), said("", ("c1", "f", "{}"), ("c2", "f", "{}")), result("c1", "y"), result("c2", "x")],
    ),
    "arguments": (one_call('{"a":1}'), one_call('{"a":2}')),
    "a number and a string": (one_call('{"a":1}'), one_call('{"a":"1"}')),
    "a number and a truth": (one_call('{"a":1}'), one_call('{"a":true}')),
    "nothing and null": (one_call("{}"), one_call('{"a":null}')),
    "a list and its element": (one_call('{"a":[1]}'), one_call('{"a":1}')),
    "the order of a list": (one_call('{"a":[1,2]}'), one_call('{"a":[2,1]}')),
    "arguments that are no JSON": (one_call("{{"), one_call("{{{")),
    "the name of a tool": (one_call(name="read_file"), one_call(name="grep")),
    "the id of a call": (one_call(call_id="c1"), one_call(call_id="c2")),
    "a result and a question": ([*one_call(answer="r"), user("n")], [*one_call()[:2], user("r"), user("n")]),
    "our block in a question": ([user(FAKE_BLOCK)], [user("rest")]),
    "our notice in a question": ([user(NOTICE + "q")], [user("q")]),
    "our block in a result": (one_call(answer=FAKE_BLOCK), one_call(answer="rest")),
}
OPENING = [user("the opening of both"), said("An answer long enough to hold on to.")]
ANSWERS = {"a short id": said("", (SHORT_ID, "read_file", '{"p":1}')), "plain words": said("The answer to it.")}


def messages(history: list[Json]) -> tuple[Message, ...]:
    """As they are behind the door; the bytes are what a client would send."""
    return parse(decode_json_object(encode_json({"messages": history, "tools": TOOLS})), ProxyConfig()).messages


def recorded(namespace: bytes, history: list[Json], answer: Json, name: ChatName = UNNAMED) -> set[bytes]:
    """Every key that an answer to a history is remembered under."""
    *before, turn = messages([*history, answer])
    return set(identity.History(namespace, before, name).answer_keys(turn).record_keys())


def looked_up(namespace: bytes, history: list[Json], answer: Json, name: ChatName = UNNAMED) -> set[bytes]:
    """Every key that the answer is looked for under when the history comes back with it."""
    keys = identity.History(namespace, messages([*history, answer]), name).keys[-1]
    assert keys is not None
    return set(keys.record_keys())


class TestCollidingPrefixes(unittest.TestCase):
    def test_a_forged_prefix_finds_no_reasoning_of_the_real_one(self) -> None:
        for name, (one, two) in PAIRS.items():
            for kind, answer in ANSWERS.items():
                for before, now in ((one, two), (two, one)):
                    with self.subTest(name, answer=kind, recorded=before):
                        known = recorded(b"me", OPENING + before, answer)
                        self.assertTrue(known & looked_up(b"me", OPENING + before, answer), "not even its own")
                        self.assertFalse(known & looked_up(b"me", OPENING + now, answer))

    def test_a_forged_first_message_finds_no_reasoning_of_the_real_one(self) -> None:
        for name, (one, two) in PAIRS.items():
            for kind, answer in ANSWERS.items():
                self.assertFalse(recorded(b"me", one, answer) & looked_up(b"me", two, answer), (name, kind))

    def test_system_messages_make_different_exact_keys(self) -> None:
        """Prompts are rewritten in mid-chat, so alone they disprove nothing; but the exact place always wins."""
        asked, answer = user("q"), ANSWERS["a short id"]
        prompts = ((), ("s",), ("s", "s"), ("s\ns",), ("s ", "s"))
        found = [identity.History(b"me", messages([*map(system, each), asked, answer])) for each in prompts]
        self.assertEqual(len(prompts), len({each.keys[-1].exact for each in found}))

    def test_a_long_tool_call_id_finds_a_turn_only_with_its_name_and_arguments(self) -> None:
        known = recorded(b"me", [user("q")], said("", (LONG_ID, "read_file", '{"p":"/etc"}')))
        ids = (LONG_ID.swapcase(), LONG_ID[:-1], LONG_ID + "x", LONG_ID + " ", LONG_ID + "\0")
        for call in (
            *((LONG_ID, "read_file", arguments) for arguments in ('{"p":"/home"}', '{"p":"/etc","q":1}', "")),
            *((LONG_ID, name, '{"p":"/etc"}') for name in ("grep", "")),
            *((call_id, "read_file", '{"p":"/etc"}') for call_id in ids),
        ):
            self.assertFalse(known & looked_up(b"me", [user("forged")], said("", call)), call)
        elsewhere = looked_up(b"me", [user("other")], said("", (LONG_ID, "read_file", '{ "p": "/etc" }')))
        self.assertTrue(known & elsewhere, "the id itself does prove the turn")

    def test_a_guessable_tool_call_id_finds_nothing_in_another_chat(self) -> None:
        for call_id in ("", "call_0", "call_1", "toolu_17", "1" * 24, "read_file_and_then_grep_it", "a" * 30, "0" * 8):
            answer = said("", (call_id, "read_file", "{}"))
            for history in ([user("another")], [user("another"), said("yes?"), user("q")], []):
                with self.subTest(call_id=call_id, history=history):
                    self.assertFalse(recorded(b"me", [user("q")], answer) & looked_up(b"me", history, answer))


class TestTwoCallers(unittest.TestCase):
    def test_no_two_callers_share_a_single_key(self) -> None:
        """Whatever the history, the answer, the name of the chat, on either side."""
        callers = [identity.namespace("https://api.deepseek.com", key) for key in strangers(KEY)]
        callers += [identity.namespace(url, KEY) for url in ("https://api.deepseek.com/beta", "https://other.example")]
        # What one of them ends with begins the other: base URL and key are told apart by more than their order.
        callers += [identity.namespace("https://api.deepseek.coms", "k-1"), identity.namespace("https://api.d", "e")]
        mine = identity.namespace("https://api.deepseek.com", KEY)
        answers = [*ANSWERS.values(), said("", (LONG_ID, "read_file", "{}"))]
        self.assertEqual(len(callers), len({*callers, mine}) - 1)
        for answer in answers:
            for name in (UNNAMED, ChatName("chat-1", "Codex")):
                known = recorded(mine, [*OPENING, user("q")], answer, name)
                for stranger in callers:
                    for asked_name in (UNNAMED, name, ChatName(mine.hex())):
                        asked = looked_up(stranger, [*OPENING, user("q")], answer, asked_name)
                        self.assertFalse(known & asked, (answer, name, stranger, asked_name))


def strangers(key: str) -> list[str]:
    """Keys that a careless comparison would take for this one."""
    return [
        key.lower(), key.upper(), key.swapcase(), key[:-1], key[:20], key + "x", key + ".", key[:30] + "zzzzzzzzz",
        f'"{key}"', "Bearer" + key, key.replace("A", "%41"), key + "'--", "*", "%", "sk-%",
    ]  # fmt: skip
