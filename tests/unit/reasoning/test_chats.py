import json
import random
import unittest
from collections.abc import Sequence
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek import tool_definitions
from deepseek_cursor_proxy.reasoning import chats
from deepseek_cursor_proxy.reasoning.chats import (
    Chats,
    LastRequest,
    RequestOutline,
    cause_of,
    diagnose,
    nearest,
    outline,
    sort_tools,
)
from deepseek_cursor_proxy.reasoning.identity import History
from tests.support.histories import assistant, result, system, user

CALL = assistant("looking", ("call_1", "read", '{"path":"a"}'))
# 0 system, 1 user, 2 assistant with a call, 3 its result, 4 assistant, 5 user
CHAT = (system("s"), user("hi"), CALL, result("call_1"), assistant("done"), user("go on"))
NEXT = (assistant("gone on"), user("and on"))


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description}}


def seen(messages: Sequence[Message], tools: str = "ab", **descriptions: str) -> RequestOutline:
    given = tuple(tool(name, descriptions.get(name, "")) for name in tools)
    request = ChatRequest("m", "m", tuple(messages), given)
    return outline(request, History(b"me", request.messages))


EVIL_TOOLS = (tool("a\nb"), tool("x" * 1000))


def changed(index: int, *others: Message) -> tuple[Message, ...]:
    """The chat, a round later, with other messages in the place of one."""
    return (*CHAT[:index], *others, *CHAT[index + 1 :], *NEXT)


class TestDiagnosis(unittest.TestCase):
    def words(self, messages: Sequence[Message], tools: str = "ab", **descriptions: str) -> str:
        return diagnose(seen(CHAT), seen(messages, tools, **descriptions)) or ""

    def test_a_chat_that_only_grows_does_not_diverge(self) -> None:
        for more in ((), NEXT[:1], NEXT, (user("and"), user("more"))):
            self.assertEqual("", self.words((*CHAT, *more)))

    def test_edits_that_change_nothing_are_no_divergence(self) -> None:
        respaced = assistant(" looking\n", ("call_1", "read", '{ "path": "a" }'))
        self.assertEqual("", self.words(changed(2, respaced)))

    def test_tools_are_told_apart_by_whatever_their_json_tells_apart(self) -> None:
        def hashes(*values: Any) -> list[int]:
            tools = tuple({"type": "function", "function": {"name": "a", "parameters": each}} for each in values)
            requests = [ChatRequest("m", "m", CHAT, (each,)) for each in tools]
            return [outline(each, History(b"me", CHAT)).tools["a"] for each in requests]

        values = ({"a": each} for each in (1, 1.0, True, "1", "\ud800"))
        different = hashes(*values, {"a": 1, "b": 2}, {"b": 2, "a": 1})
        self.assertEqual(len(different), len(set(different)))
        shared = ["x" * 50, "é"]
        again = [json.loads(json.dumps(shared)), ["x" * 50, "".join(["", "é"])]]
        self.assertEqual(1, len(set(hashes({"a": [shared, shared]}, {"a": again}))))

    def test_what_precedes_the_messages_is_named_in_the_order_of_the_prompt(self) -> None:
        def at(**fields: Any) -> RequestOutline:
            return outline(ChatRequest("m", fields.pop("model", "m"), CHAT, **fields), History(b"me", CHAT))

        for fields, words in (
            ({"effort": "max"}, "effort changed (high → max)"),
            ({"thinking": False}, "thinking switched (on → off)"),
            ({"thinking": False, "tool_choice": "required"}, "thinking switched (on → off, a tool is forced)"),
            ({"model": "n", "effort": "max"}, "model changed (m → n), effort changed (high → max)"),
        ):
            self.assertEqual(words, diagnose(at(), at(**fields)))

    def test_a_cause_is_named_without_what_differs_from_request_to_request(self) -> None:
        for words, cause in (
            ("effort changed (high → max), message 3 changed (user content)", "effort changed"),
            ("message 12 changed (user content)", "message changed"),
            ("tools changed (added grep), message 3 changed (tool ids)", "tools changed"),
        ):
            self.assertEqual(cause, cause_of(words))

    def test_the_table_of_edits(self) -> None:
        for expected, messages in (
            ("system prompt changed", changed(0, system("another day"))),
            ("system prompt changed", changed(0, system("s"), system("a second one"))),
            ("system prompt changed", CHAT[1:]),
            ("message 1 changed (user content)", changed(1, user("hi!"))),
            ("message 2 changed (assistant content)", changed(2, CALL._replace(content="looked"))),
            *(
                ("message 2 changed (assistant content)", changed(2, assistant("looking", call)))
                for call in (
                    ("call_1", "read", '{"path":"b"}'),
                    ("call_1", "write", '{"path":"a"}'),
                    ("call_2", "read", '{"path":"a"}'),
                )
            ),
            ("message 3 changed (tool content)", changed(3, result("call_1", "[elided]"))),
            ("message 3 changed (tool content)", changed(3, result("call_9"))),
            ("message 3 changed (user replaced)", changed(3, user("its result was ok"))),
            ("message 4 changed (assistant removed)", changed(4)),
            ("message 5 changed (user removed)", CHAT[:5]),
            ("message 2 changed (assistant removed)", CHAT[:2] + CHAT[4:]),
            ("message 4 changed (system inserted)", changed(4, system("mind the time"), CHAT[4])),
            ("system prompt changed, message 5 changed (user content)", (system("t"), *CHAT[1:5], user("stop"))),
        ):
            self.assertEqual(expected, self.words(messages), (expected, messages))

    def test_the_table_of_tools(self) -> None:
        for expected, tools in (
            ("tools changed (added c)", "abc"), ("tools changed (removed a)", "b"),
            ("tools changed (added c, removed b)", "ac"), ("", "ba"), ("tools changed (added c)", "bca"),
            ("tools changed (removed a and b)", ""), ("tools changed (added 1, 2, 3 and 2 more)", "ab12345"),
        ):  # fmt: skip
            self.assertEqual(expected, self.words(CHAT, tools), expected)
        self.assertEqual("tools changed (changed b)", self.words(CHAT, b="does other things now"))

    def test_a_chat_that_is_back_at_its_first_words_is_begun_again(self) -> None:
        self.assertEqual("", self.words(CHAT[:2]))

    def test_a_name_cannot_forge_a_line(self) -> None:
        before, now = (outline(ChatRequest("m", "m", CHAT, given), History(b"me", CHAT)) for given in ((), EVIL_TOOLS))
        found = diagnose(before, now) or ""
        self.assertIn("tools changed (added ", found)
        self.assertNotIn("\n", found)
        self.assertLess(len(found), 140)

    def test_no_text_is_kept(self) -> None:
        kept = repr(seen((system("secret"), user("secret"), assistant("secret", ("c", "read", '{"x":"secret"}')))))
        self.assertNotIn("secret", kept)

    def test_the_first_edit_is_the_one_that_is_told(self) -> None:
        """The law, over generated chats: an edit at i is told as i; appending is never told."""
        for seed in range(300):
            rng = random.Random(seed)
            chat = [system("s"), *(user(f"{number} {rng.random()}") for number in range(rng.randrange(3, 30)))]
            before = seen(chat)
            later = [*chat, *(user(f"more {rng.random()}") for _ in range(rng.randrange(4)))]
            at = rng.randrange(2, len(chat))
            edited = [*later[:at], user(f"edited {rng.random()}"), *later[at + 1 :]]
            for number in range(at + 1, len(edited)):
                if rng.random() < 0.3:
                    edited[number] = user(f"edited too {rng.random()}")
            with self.subTest(seed=seed):
                self.assertIsNone(diagnose(before, seen(later)))
                self.assertEqual(f"message {at} changed (user content)", diagnose(before, seen(edited)))


class TestNearest(unittest.TestCase):
    """Which of the last requests that began with the same words a request goes on from."""

    def assert_nearest(
        self, expected: RequestOutline | None, known: Sequence[RequestOutline], now: RequestOutline
    ) -> None:
        for order in (known, known[::-1]):
            self.assertIs(expected, nearest(order, now))

    def test_a_title_maker_is_nobody_s_continuation(self) -> None:
        chat, title = seen(CHAT[:2]), seen((system("Make a title."), CHAT[1]), "")
        self.assert_nearest(None, [chat], title)
        self.assert_nearest(chat, [chat, title], seen(CHAT))

    def test_a_summariser_does_not_stand_in_for_the_chat(self) -> None:
        summary = seen((system("Summarise."), *CHAT[1:], NEXT[0], user("Sum it up.")), "")
        chat = seen(CHAT)
        self.assert_nearest(chat, [chat], summary)
        self.assert_nearest(chat, [chat, summary], seen((*CHAT, *NEXT)))

    def test_sub_agents_that_begin_alike_are_told_apart_by_what_was_said(self) -> None:
        openings = [(system("s"), user("hi"), assistant(f"agent {number}"), user("go")) for number in range(4)]
        known = [seen(each) for each in openings]
        for outline_, opening in zip(known, openings, strict=True):
            self.assert_nearest(outline_, known, seen((*opening, *NEXT)))

    def test_an_agent_that_has_just_begun_is_preferred_to_one_that_went_elsewhere(self) -> None:
        gone, begun = seen(CHAT), seen(CHAT[:2])
        self.assert_nearest(begun, [gone, begun], seen((*CHAT[:2], assistant("else"), user("go"))))

    def test_an_edited_chat_is_known_again_by_its_answers(self) -> None:
        chat, begun = seen((*CHAT, *NEXT)), seen(CHAT[:2])
        for edited in (
            changed(2, assistant("cut")), changed(3, result("call_1", "[elided]")), changed(5, user("stop")),
        ):  # fmt: skip
            self.assert_nearest(chat, [chat, begun], seen((*edited, *NEXT)))

    def test_a_rewritten_system_prompt_or_tool_set_does_not_hide_the_chat(self) -> None:
        for now in (seen((system("new"), *CHAT[1:], *NEXT)), seen((*CHAT, *NEXT), "abc")):
            self.assert_nearest(last := seen(CHAT), [last], now)
        for now in (seen((system("new"), *CHAT[1:])), seen(CHAT, "abc")):
            self.assert_nearest(last := seen(CHAT[:2]), [last], now)


class TestChats(unittest.TestCase):
    def setUp(self) -> None:
        self.chats = Chats()

    def accept(self, messages: Sequence[Message], tools: str = "ab", chat: bytes = b"chat") -> LastRequest | None:
        """A request that DeepSeek accepted; the last request that it was found to follow."""
        now = seen(messages, tools)
        found = self.chats.find(chat, now)
        self.chats.record(chat, found, now)
        return found

    def found(self, messages: Sequence[Message], tools: str = "ab", chat: bytes = b"chat") -> RequestOutline | None:
        last = self.chats.find(chat, seen(messages, tools))
        return None if last is None else last.outline

    def test_what_was_accepted_is_found_by_the_next_request(self) -> None:
        self.assertIsNone(self.accept(CHAT))
        last = self.accept((*CHAT, *NEXT))
        self.assertEqual(seen(CHAT), last and last.outline)
        self.assertIsNone(self.found(CHAT, chat=b"another chat"))

    def test_helpers_that_begin_with_the_same_words_disturb_nothing(self) -> None:
        title = (system("Make a title."), CHAT[1])
        self.accept(CHAT[:2])
        self.assertIsNone(self.accept(title, ""))
        self.assertIsNone(self.accept(title, "xy"))
        self.assertEqual(seen(CHAT[:2]), self.found(CHAT))

    def test_equal_requests_at_the_same_time_are_kept_once(self) -> None:
        now = seen(CHAT)
        for found in [self.chats.find(b"chat", now) for _ in range(3)]:
            self.chats.record(b"chat", found, now)
        self.assertEqual(1, len(self.chats._chats[b"chat"]))

    def test_memory_is_bounded_by_messages_tools_and_agents(self) -> None:
        self.enterContext(mock.patch.object(chats, "_MESSAGES_IN_MEMORY", 80))
        for number in range(100):
            self.accept(CHAT, chat=b"%d" % number)
        self.assertEqual(10, len(self.chats._chats))
        for number in range(100):
            self.accept((*CHAT[:2], assistant(str(number)), user("go")), chat=b"one")
        self.assertEqual(chats._AGENTS_PER_CHAT, len(self.chats._chats[b"one"]))
        kept = [each for last in self.chats._chats.values() for each in last]
        self.assertEqual(sum(each.size for each in kept), self.chats._size)


def tools(*given: str) -> tuple[dict[str, Any], ...]:
    return tuple(tool(name, f"does {name}") for name in given)


class TestToolOrder(unittest.TestCase):
    def sorted(self, given: tuple[dict[str, Any], ...]) -> tuple[Any, ...]:
        return tuple(sort_tools(ChatRequest("m", "m", CHAT, given)).tools)

    def test_tools_are_sorted_by_name_and_never_changed(self) -> None:
        given = tools("b", "a")
        self.assertEqual((given[1], given[0]), self.sorted(given))
        for expected, names in (("abc", "cab"), ("BZa", "aZB"), ("z", "z"), ("", ""), ("bab", "bab")):
            self.assertEqual(tuple(expected), tuple(map(tool_definitions.tool_name, self.sorted(tools(*names)))), names)
