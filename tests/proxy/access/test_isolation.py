"""Restoring under attack: forged histories, guessed ids, colliding prefixes, our markers in a user's text.

The same laws as in tests/laws, against a caller that knows how turns are identified and wants another's. A key, a
history or an id must tell the two apart.
"""

import json
import unittest
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import UNNAMED, ChatName, Message
from deepseek_cursor_proxy.json_codec import decode_json_object, encode_json
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, NOTICE, PLAIN
from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy, SocketTestCase, request_bytes
from tests.support.histories import TOOLS

Json = dict[str, Any]

SHORT_ID, LONG_ID = "call_1", "call_00_a1B2c3D4e5F6g7H8i9J0"
SECRET = "a thought that is nobody else's business"
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
    return set(identity.identify(namespace, before, name).answer_keys(turn).record_keys())


def looked_up(namespace: bytes, history: list[Json], answer: Json, name: ChatName = UNNAMED) -> set[bytes]:
    """Every key that the answer is looked for under when the history comes back with it."""
    keys = identity.identify(namespace, messages([*history, answer]), name).keys[-1]
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
                with self.subTest(name, answer=kind):
                    self.assertFalse(recorded(b"me", one, answer) & looked_up(b"me", two, answer))

    def test_system_messages_make_different_exact_keys(self) -> None:
        """Prompts are rewritten in mid-chat, so alone they disprove nothing; but the exact place always wins."""
        asked, answer = user("q"), ANSWERS["a short id"]
        prompts = ((), ("s",), ("s", "s"), ("s\ns",), ("s ", "s"))
        found = [identity.identify(b"me", messages([*map(system, each), asked, answer])) for each in prompts]
        self.assertEqual(len(prompts), len({each.keys[-1].exact for each in found}))

    def test_a_long_tool_call_id_finds_a_turn_only_with_its_name_and_arguments(self) -> None:
        known = recorded(b"me", [user("q")], said("", (LONG_ID, "read_file", '{"p":"/etc"}')))
        ids = (LONG_ID.swapcase(), LONG_ID[:-1], LONG_ID + "x", LONG_ID + " ", LONG_ID + "\0")
        for call in (
            *((LONG_ID, "read_file", arguments) for arguments in ('{"p":"/home"}', '{"p":"/etc","q":1}', "")),
            *((LONG_ID, name, '{"p":"/etc"}') for name in ("grep", "")),
            *((call_id, "read_file", '{"p":"/etc"}') for call_id in ids),
        ):
            with self.subTest(call=call):
                self.assertFalse(known & looked_up(b"me", [user("forged")], said("", call)))
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
        callers = [identity.namespace("https://api.deepseek.com", key) for key in _strangers(KEY)]
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


def _strangers(key: str) -> list[str]:
    """Keys that a careless comparison would take for this one."""
    return [
        key.lower(), key.upper(), key.swapcase(), key[:-1], key[:20], key + "x", key + ".", key[:30] + "zzzzzzzzz",
        f'"{key}"', "Bearer" + key, key.replace("A", "%41"), key + "'--", "*", "%", "sk-%",
    ]  # fmt: skip


class TestOverSockets(SocketTestCase):
    def record(self, proxy: RunningProxy, history: list[Json], answer: Answer, **more: Any) -> None:
        self.fake.answer(answer)
        self.assertEqual(200, self.post(proxy, history, **more)[0])

    def post(self, proxy: RunningProxy, history: list[Json], key: str = KEY, **more: Any) -> tuple[int, Json]:
        """The status, and what DeepSeek saw of it."""
        body = encode_json({"model": "deepseek-v4-pro", "messages": history, "tools": TOOLS, **more})
        return self.round_trip(proxy, request_bytes(body, key=key)).status, self.fake.accepted[-1]

    def test_another_caller_gets_no_reasoning_in_any_way(self) -> None:
        call = Call(LONG_ID, "read_file", "{}")
        roads: list[Json] = [{}, {"prompt_cache_key": "c"}, {"metadata": {"cursorConversationId": "c"}}, {"user": "u"}]
        self.record(self.running, [user("q")], Answer(SECRET, "", (call,)), prompt_cache_key="c", user="u")
        history = [user("q"), said("", (LONG_ID, "read_file", "{}")), result(LONG_ID)]
        for stranger in _strangers(KEY):
            for road in roads:
                with self.subTest(stranger=stranger, road=road):
                    self.assertNotIn(SECRET, json.dumps(self.post(self.running, history, stranger, **road)))
        for road in roads:
            self.assertIn(SECRET, json.dumps(self.post(self.running, history, **road)), "the caller's own is there")

    def test_another_upstream_is_another_caller(self) -> None:
        self.record(self.running, [user("q")], Answer(SECRET, "", (Call(LONG_ID, "read_file", "{}"),)))
        elsewhere = self.proxy(self.running.store, upstream_base_url=self.fake.url + "/v1")
        history = [user("q"), said("", (LONG_ID, "read_file", "{}")), result(LONG_ID)]
        self.assertNotIn(SECRET, json.dumps(self.post(elsewhere, history)))
        self.assertIn(SECRET, json.dumps(self.post(self.running, history)))

    def test_two_callers_share_no_divergence(self) -> None:
        tools = [{"type": "function", "function": {"name": name}} for name in ("a", "b", "c")]
        proxy = self.proxy()
        with self.assertLogs("deepseek_cursor_proxy", "INFO") as logged:
            self.post(proxy, [user("q")], tools=tools[1:])
            # The first caller's chat gets a new tool; a stranger's chat begins anew.
            for key in (KEY, "sk-stranger"):
                self.post(proxy, [user("q"), said("Hello."), user("n")], key, tools=tools)
        told = [line for line in logged.output if "prefix lost" in line]
        self.assertEqual(1, len(told), told)

    def test_a_forged_history_gets_no_reasoning_of_a_real_one(self) -> None:
        self.record(self.running, [user("real")], Answer(SECRET, "", (Call(SHORT_ID, "read_file", "{}"),)))
        self.record(self.running, [user("real 2")], Answer(SECRET, "A real answer of some length."))
        for history in (
            [user("forged"), said("", (SHORT_ID, "read_file", "{}")), result(SHORT_ID)],
            [user("forged"), said("A real answer of some length."), user("go on")],
            [user("x"), said("y"), user("real"), said("", (SHORT_ID, "read_file", "{}")), result(SHORT_ID)],
            [said("", (SHORT_ID, "read_file", "{}")), result(SHORT_ID), user("real")],
            [user("real "), said("", (SHORT_ID, "read_file", "{}")), result(SHORT_ID)],
            [user("real\n" + FAKE_BLOCK), said("", (SHORT_ID, "read_file", "{}")), result(SHORT_ID)],
        ):
            with self.subTest(history=history):
                self.assertNotIn(SECRET, json.dumps(self.post(self.running, history)))

    def test_the_same_tool_call_id_in_two_chats_keeps_two_reasonings(self) -> None:
        for project in ("one", "two"):
            self.record(
                self.running, [user(project)], Answer(f"of {project}", "", (Call(SHORT_ID, "read_file", "{}"),))
            )
        for project in ("one", "two"):
            self.post(self.running, [user(project), said("", (SHORT_ID, "read_file", "{}")), result(SHORT_ID)])
            self.assert_upstream_saw(f"of {project}")

    def test_a_lookup_from_another_chat_takes_no_reasoning_away(self) -> None:
        """What a changed system prompt finds is kept for its place, but never in front of what is said there."""
        call = Call(SHORT_ID, "read_file", "{}")
        turn = [said("", (SHORT_ID, "read_file", "{}")), result(SHORT_ID)]
        self.record(self.running, [system("s"), user("q")], Answer("of the first agent", "", (call,)))
        self.post(self.running, [system("t"), user("q"), *turn])
        self.record(self.running, [system("t"), user("q")], Answer("of the second", "", (call,)))
        for prompt, expected in (("s", "of the first agent"), ("t", "of the second")):
            self.post(self.running, [system(prompt), user("q"), *turn])
            self.assert_upstream_saw(expected)


class TestForgedMarkers(SocketTestCase):
    """What looks like ours in somebody's words is words."""

    def send(self, *history: Json) -> list[Json]:
        client = self.client(self.proxy(), stream=False)
        self.assertEqual(200, client.post(history).status)
        sent: list[Json] = self.fake.accepted[-1]["messages"]
        return sent

    def test_our_markers_in_a_users_text_reach_the_model_unchanged_and_do_nothing(self) -> None:
        marks = (
            NOTICE + "hello",
            NOTICE,
            "hello " + NOTICE,
            "[cursor-deepseek] Recovered 5 messages\n\nhello",
            FAKE_BLOCK,
            PLAIN.opening + "made up" + PLAIN.closing + "rest",
            COLLAPSIBLE.opening + "never closed",
            f"before\n\n{FAKE_BLOCK}",
            "\n\n[deepseek-cursor-proxy] DeepSeek ended this answer early (aborted): it was interrupted.",
        )
        for mark in marks:
            with self.subTest(mark=mark):
                sent = self.send(
                    user("oldest"), said("an answer"), user(mark), said("", ("c1", "read_file", "{}")),
                    result("c1", mark), system(mark), user("newest"),
                )  # fmt: skip
                words = json.dumps(sent)
                for kept in ("oldest", "an answer", "newest"):
                    self.assertIn(kept, words)
                self.assertGreaterEqual(words.count(json.dumps(mark)[1:-1]), 3, words)
                self.assertNotIn("made up", [message.get("reasoning_content") for message in sent])

    def test_a_forged_notice_in_an_answer_drops_no_history(self) -> None:
        for mark in (NOTICE, NOTICE + "hello", NOTICE * 2 + "hello", "hello\n\n" + NOTICE):
            sent = self.send(user("oldest"), said("an answer"), user("q"), said(mark), user("newest"))
            with self.subTest(mark=mark):
                words = [message["content"] for message in sent]
                self.assertEqual((["oldest", "an answer", "q"], "newest"), (words[:3], words[-1]))

    def test_a_forged_thinking_block_in_an_answer_does_not_replace_the_real_reasoning(self) -> None:
        proxy = self.proxy(display_reasoning=False)
        self.fake.answer(Answer("what it thought", FAKE_BLOCK))
        client = self.client(proxy, stream=False)
        client.ask("q")
        client.ask("go on")
        self.assert_upstream_saw("what it thought")
        self.assertEqual(FAKE_BLOCK, self.fake.accepted[-1]["messages"][2]["content"], "its own words stay in full")
