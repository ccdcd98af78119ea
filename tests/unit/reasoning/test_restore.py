import unittest
from collections import Counter
from collections.abc import Collection, Sequence
from unittest import mock

from deepseek_cursor_proxy.chat_memory import NO_CHAT
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.errors import MissingReasoning
from deepseek_cursor_proxy.reasoning import identity, restore
from deepseek_cursor_proxy.reasoning.echoes import find_turns
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest, Source, look_up, prepare, prepare_second_attempt
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, NOTICE, PLAIN
from tests.support.histories import TOOLS, assistant, new_chat, result, system, user

ME = identity.namespace("https://api.deepseek.com", "sk-me")
CALL = ("call_1", "read_file", "{}")
S, U, A, T, U2 = system("S"), user("U"), assistant("", CALL), result("call_1"), user("U2")


def block(reasoning: str) -> str:
    return COLLAPSIBLE.opening + COLLAPSIBLE.escape(reasoning) + COLLAPSIBLE.closing


class Memory:
    """A store in a dict."""

    def __init__(self, found: dict[bytes, Sequence[str]] | None = None) -> None:
        self.found = {} if found is None else found
        self.chats = new_chat()

    def record(self, before: Sequence[Message], answer: Message, reasoning: str) -> None:
        for key in identity.identify(ME, before).answer_keys(answer).record_keys():
            self.found[key] = list(dict.fromkeys([reasoning, *self.found.get(key, ())]))

    def record_aliases(self, prepared: PreparedRequest) -> None:
        for alias in prepared.aliases:
            self.found.setdefault(alias.new, [alias.reasoning])

    def prepare(
        self, *messages: Message, strategy: str = "recover", tools: bool = True, thinking: bool = True
    ) -> PreparedRequest:
        request = _request(messages, tools, thinking)
        history = identity.identify(ME, messages, None, self.chats)
        return prepare(request, history, self.found, strategy, self.chats)

    def prepare_second_attempt(self, *messages: Message, strategy: str = "recover") -> PreparedRequest:
        history, request = identity.identify(ME, messages), _request(messages, True, True)
        refused = prepare(request, history, self.found, "recover" if strategy == "recover" else "placeholder")
        return prepare_second_attempt(request, self.found, refused, strategy)


def _request(messages: Sequence[Message], tools: bool, thinking: bool) -> ChatRequest:
    return ChatRequest("m", "m", tuple(messages), tuple(TOOLS) if tools else (), thinking=thinking)


def reasonings(prepared: PreparedRequest) -> list[str | None]:
    return [message.reasoning for message in prepared.request.messages if message.role == "assistant"]


def _sent(prepared: PreparedRequest) -> tuple[object, str | None]:
    message = prepared.request.messages[1]
    return message.content, message.reasoning


def turn(text: str, reasoning: str | None = None) -> Message:
    return assistant(text, CALL, reasoning=reasoning)


OPENING, TWO_LINES, HALF = COLLAPSIBLE.opening, "a thought\nof two lines\n", "half a thought, and some more"
OWN, QUOTED = block("the model wrote this itself") + "Hi", "Look:\n\n<think>\nhm\n</think>\n\nlike that"
KNOWN = block("known") + "Hi"
# A turn as it was stored, as the client sends it, and the text and reasoning that are sent upstream.
ECHOES: tuple[tuple[str, Message | None, Message, tuple[str, str]], ...] = (
    ("reasoning that the client alone has stays", None, turn("", "sent"), ("", "sent")),
    ("reasoning of a client stays where the model is known to have none", turn("", ""), turn("", "sent"), ("", "sent")),
    *(
        ("a stored reasoning beats what the client sends for it", turn("", "stored"), turn("", sent), ("", "stored"))
        for sent in (".", "(no reasoning)", "store", "stored and more")
    ),
    ("a block equal to the stored reasoning is stripped", turn("Hi", "known"), turn(KNOWN), ("Hi", "known")),
    ("a block that differs from it stays text", turn(OWN, "known"), turn(OWN), (OWN, "known")),
    *(
        ("our block goes whatever reasoning comes with it", turn("Hi", "known"), turn(KNOWN, sent), ("Hi", used))
        for sent, used in (("", "known"), (" ", "known"), ("other", "known"))
    ),
    *(
        ("our block goes if the client trimmed its copy", None, turn(block(TWO_LINES) + "Hi", echo), ("Hi", TWO_LINES))
        for echo in ("a thought\nof two lines", "athoughtoftwolines", " a  thought of two lines")
    ),
    ("a block unlike the client's reasoning stays text", None, turn(OWN, "other"), (OWN, "other")),
    *(
        ("an empty or short similar block stays text", turn(text, reasoning), turn(text), (text, reasoning or FILLER))
        for reasoning, text in (("", "<think>\n\n</think>\n\nFin"), ("ab", "<think>\na\n</think>\n\nFin"))
    ),
    ("a stopped turn is found", assistant(reasoning=HALF), assistant(OPENING + "half a thought, a"), ("", HALF)),
    ("a stopped turn that is not stored has its block", None, assistant(OPENING + "half"), ("", "half")),
    *(
        ("an empty block of a stopped turn goes", assistant(reasoning=" \n<"), assistant(opening), ("", " \n<"))
        for opening in (OPENING, OPENING.strip(), PLAIN.opening)
    ),
    *(
        ("a block of the model after ours stays", turn(own, "known"), turn(block("known") + own), (own, "known"))
        for own in (OWN, block("") + "Hi", "Hi\n\n" + block("") + "Hi")
    ),
    ("two blocks that make it up go", turn("bd", "ac"), turn(block("a") + "b\n\n" + block("c") + "d"), ("bd", "ac")),
    ("a quoted block after ours stays", None, turn(block("ours") + QUOTED), (QUOTED, "ours")),
    ("two unknown blocks stay", None, assistant(block("a") + OWN), (block("a") + OWN, FILLER)),
    *(
        ("a notice goes wherever we wrote it", assistant("Hi", reasoning="known"), assistant(text), ("Hi", "known"))
        for text in (NOTICE + "Hi", block("known") + NOTICE + "Hi")
    ),
)


class RestoreTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.memory = Memory()


class TestQueries(unittest.TestCase):
    def test_a_grown_chat_needs_one_store_query_and_others_as_few_as_possible(self) -> None:
        messages = (U, assistant("one"), U2, assistant("two"), user("go on"))
        history = identity.identify(ME, messages)
        first, second = history.keys[1], history.keys[3]
        assert first is not None
        assert second is not None
        sent = [each for each in history.sent_keys if each is not None]
        everything = [*first.weaker_keys(), *second.weaker_keys()]
        known = {first.exact: ["a"], second.exact: ["b"]}
        for found, queries in (
            ({sent[0]: ["a"], sent[1]: ["b"]}, [[*sent, second.exact]]),
            ({sent[0]: ["a"], second.exact: ["b"]}, [[*sent, second.exact]]),
            (known, [[*sent, second.exact], [first.exact]]),
            ({}, [[*sent, second.exact], [first.exact, second.exact], everything]),
        ):
            looked_up: list[list[bytes]] = []

            def find(keys: Collection[bytes]) -> dict[bytes, list[str]]:
                looked_up.append(list(keys))  # noqa: B023
                return {key: found[key] for key in keys if key in found}  # type: ignore[index]  # noqa: B023

            look_up(_request(messages, True, True), history, find)
            self.assertEqual(queries, looked_up)


class TestSources(RestoreTestCase):
    def test_every_echo_of_a_turn_is_sent_with_its_own_text_and_reasoning(self) -> None:
        for name, stored, echo, expected in ECHOES:
            with self.subTest(name, echo=echo):
                memory = Memory()
                if stored is not None:
                    memory.record((U,), stored, stored.reasoning or "")
                self.assertEqual(expected, _sent(memory.prepare(U, echo, T if echo.tool_calls else U2)))

    def test_a_stored_turn_gets_its_reasoning_back(self) -> None:
        self.memory.record((S, U), A, "known")
        prepared = self.memory.prepare(S, U, A, T)
        self.assertEqual(["known"], reasonings(prepared))
        self.assertEqual((1, 0, 0, 0, 0), prepared.count_turns())

    def test_of_two_stored_reasonings_for_one_key_only_a_displayed_block_restores_one(self) -> None:
        self.memory.record((U,), A, "one agent")
        self.memory.record((U,), A, "another agent")
        prepared = self.memory.prepare(U, A, T, strategy="placeholder")
        self.assertEqual([FILLER], reasonings(prepared))
        self.assertEqual("ambiguous exact", prepared.turns[0].proof)
        for reasoning in ("one agent", "another agent"):
            self.assertEqual([reasoning], reasonings(self.memory.prepare(U, turn(block(reasoning)), T)))

    def test_of_two_stored_reasonings_for_one_key_the_client_decides(self) -> None:
        self.memory.record((U,), A, "one agent")
        self.memory.record_aliases(self.memory.prepare(U, A, T))
        self.memory.record((U,), A, "another agent")
        for sent, used in (("one agent", "one agent"), ("another agent", "another agent"), ("  another\nagent", None)):
            prepared = self.memory.prepare(U, turn("", sent), result("call_1", "otherwise"))
            self.assertEqual([used or "another agent"], reasonings(prepared))
        self.assertEqual(["."], reasonings(self.memory.prepare(U, turn("", "."), result("call_1", "otherwise"))))
        # This chat has sent one of them before.
        self.assertEqual(["one agent"], reasonings(self.memory.prepare(U, turn("", "."), T)))

    def test_a_reasoning_that_only_a_weaker_key_finds_gives_way_to_what_the_client_sends(self) -> None:
        unique = ("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", "{}")
        self.memory.record((U,), assistant("", unique), "by id")
        history = (system("new"), U, assistant("", unique), result(unique[0]))
        self.memory.record_aliases(self.memory.prepare(*history))
        edited = (*history[:2], assistant("", unique, reasoning="edited by the user"), history[3])
        self.assertEqual(["edited by the user"], reasonings(self.memory.prepare(*edited)))

    def test_a_displayed_block_wins_over_a_weak_match_with_other_reasoning(self) -> None:
        answer = "a plain answer of some length"
        self.memory.record((U,), assistant(answer), "of another chat")
        prepared = self.memory.prepare(system("new"), U, assistant(block("of this chat") + answer), U2)
        self.assertEqual((["of this chat"], Source.DISPLAY), (reasonings(prepared), prepared.turns[0].source))
        self.assertEqual("contradicted dialogue", prepared.turns[0].proof)

    def test_a_unique_call_id_finds_a_turn_in_another_history(self) -> None:
        unique = ("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", "{}")
        self.memory.record((U,), assistant("", unique), "by id")
        prepared = self.memory.prepare(system("new"), user("other"), assistant("", unique), result(unique[0]))
        self.assertEqual((["by id"], "call"), (reasonings(prepared), prepared.turns[0].proof))

    def test_a_turn_found_by_a_weaker_key_gets_an_alias_for_its_position(self) -> None:
        answer = assistant("a plain answer of some length")
        self.memory.record((U,), answer, "known")
        history = identity.identify(ME, (system("new"), U, answer))
        prepared = self.memory.prepare(system("new"), U, answer, U2)
        self.assertEqual((["known"], "dialogue"), (reasonings(prepared), prepared.turns[0].proof))
        keys = history.keys[2]
        assert keys is not None
        self.assertEqual(((keys.dialogue, keys.alias, "known", ()),), prepared.aliases)
        sent = identity.identify(ME, (U, answer, U2)).sent_keys[1]
        exact = identity.identify(ME, (U, answer)).keys[1]
        assert exact is not None
        self.assertEqual(((exact.exact, sent, "known", ()),), self.memory.prepare(U, answer, U2).aliases)

    def test_a_turn_with_an_alias_stays_found_when_others_store_the_same_text(self) -> None:
        answer = assistant("a plain answer of some length")
        self.memory.record((U,), answer, "known")
        self.memory.record_aliases(self.memory.prepare(system("new"), U, answer, U2))
        self.memory.record((system("other"), U), answer, "of another agent")
        prepared = self.memory.prepare(system("new"), U, answer, U2)
        self.assertEqual((["known"], "alias"), (reasonings(prepared), prepared.turns[0].proof))
        self.assertEqual((), prepared.aliases)

    def test_a_turn_stored_at_this_position_wins_over_an_alias(self) -> None:
        answer = assistant("a plain answer of some length")
        self.memory.record((U,), answer, "of another agent")
        self.memory.record_aliases(self.memory.prepare(system("new"), U, answer, U2))
        self.memory.record((system("new"), U), answer, "its own")
        prepared = self.memory.prepare(system("new"), U, answer, U2)
        self.assertEqual((["its own"], "exact"), (reasonings(prepared), prepared.turns[0].proof))
        self.memory.record_aliases(prepared)
        self.memory.record((system("new"), U), answer, "its own, asked again")
        prepared = self.memory.prepare(system("new"), U, answer, U2)
        self.assertEqual((["its own"], "sent"), (reasonings(prepared), prepared.turns[0].proof))
        prepared = self.memory.prepare(system("new"), U, answer, user("asked otherwise"))
        self.assertEqual([FILLER], reasonings(prepared), "two were said here, and the alias is neither")

    def test_a_displayed_block_with_other_reasoning_wins_over_an_alias(self) -> None:
        answer = "a plain answer of some length"
        self.memory.record((U,), assistant(answer), "of another chat")
        self.memory.record_aliases(self.memory.prepare(system("new"), U, assistant(answer), U2))
        prepared = self.memory.prepare(system("new"), U, assistant(block("of this chat") + answer), U2)
        self.assertEqual((["of this chat"], Source.DISPLAY), (reasonings(prepared), prepared.turns[0].source))

    def test_a_message_merged_from_two_turns_gets_the_reasoning_of_both(self) -> None:
        one, two = ("call_00_a1B2c3D4e5F6g7H8i9J0", "f", "{}"), ("call_00_Z9y8X7w6V5u4T3s2R1q0", "f", "{}")
        self.memory.record((U,), assistant("", one), "first")
        self.memory.record((U, assistant("", one), result(one[0])), assistant("", two), "second")
        merged = assistant("", one, two)
        prepared = self.memory.prepare(user("x"), merged, result(one[0]), result(two[0]))
        self.assertEqual(["first\n\nsecond"], reasonings(prepared))

    def test_blank_reasoning_from_the_client_counts_as_none(self) -> None:
        for blank in ("", " ", "\n\n"):
            answer = assistant("", CALL, reasoning=blank)
            prepared = self.memory.prepare(U, answer, T)
            self.assertEqual((Source.MISSING, True), (prepared.turns[0].source, prepared.has_transcript))
            memory = Memory()
            memory.record((U,), A, "stored")
            self.assertEqual(["stored"], reasonings(memory.prepare(U, answer, T)))

    def test_a_turn_stored_without_reasoning_is_known_to_have_none(self) -> None:
        self.memory.record((U,), A, "")
        prepared = self.memory.prepare(U, A, T)
        self.assertEqual([FILLER], reasonings(prepared))
        self.assertEqual((0, False), (prepared.missing_count, prepared.has_transcript))

    def test_a_displayed_block_that_is_not_stored_becomes_the_reasoning(self) -> None:
        prepared = self.memory.prepare(U, assistant(block("from </details> display") + "Hi", CALL), T)
        self.assertEqual(("Hi", "from </details> display"), _sent(prepared))
        self.assertEqual(Source.DISPLAY, prepared.turns[0].source)

    def test_merged_turns_keep_the_reasoning_of_all_their_blocks(self) -> None:
        one, two = ("call_00_a1B2c3D4e5F6g7H8i9J0", "f", "{}"), ("call_00_Z9y8X7w6V5u4T3s2R1q0", "f", "{}")
        self.memory.record((U,), assistant("A.", one), "first")
        self.memory.record((U, assistant("A.", one), result(one[0])), assistant("B.", two), "second")
        merged = assistant(block("first") + "A.\n\n" + block("second") + "B.", one, two)
        prepared = self.memory.prepare(U, merged, result(one[0]), result(two[0]))
        self.assertEqual(("A.B.", "first\n\nsecond"), _sent(prepared))

    def test_text_and_calls_in_separate_messages_are_restored_as_one_turn(self) -> None:
        unique = ("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", "{}")
        self.memory.record((U, A, T), assistant("Let me look.", unique), "known")
        self.memory.record((U,), A, "before")
        history = (U, A, T, assistant("Let me look."), assistant("", unique), result(unique[0]))
        prepared = self.memory.prepare(*history)
        self.assertEqual((["before", FILLER, "known"], False), (reasonings(prepared), prepared.has_transcript))

    def test_restoring_never_changes_user_and_tool_text(self) -> None:
        words = block("x") + NOTICE
        prepared = self.memory.prepare(user(words), assistant("", CALL, reasoning="r"), result("call_1", words))
        self.assertEqual([words, words], [prepared.request.messages[index].content for index in (0, 2)])


class TestReasoningNeeds(RestoreTestCase):
    def test_plain_answers_get_their_reasoning_in_a_request_with_tools(self) -> None:
        self.memory.record((U,), assistant("Hi"), "known")
        self.assertEqual(["known"], reasonings(self.memory.prepare(U, assistant("Hi"), U2)))

    def test_a_plain_answer_that_is_not_stored_gets_a_filler(self) -> None:
        prepared = self.memory.prepare(S, U, assistant("Hi"), U2)
        self.assertEqual([FILLER], reasonings(prepared))
        self.assertEqual((1, False, ""), (prepared.missing_count, prepared.has_transcript, prepared.notice))
        self.assertEqual(4, len(prepared.request.messages))

    def test_without_tools_only_tool_loops_get_their_reasoning(self) -> None:
        self.memory.record((U,), assistant("Hi"), "plain")
        self.memory.record((U, assistant("Hi"), U2), A, "loop")
        self.assertEqual([None, "loop"], reasonings(self.memory.prepare(U, assistant("Hi"), U2, A, T, tools=False)))

    def test_with_thinking_off_no_reasoning_is_missing(self) -> None:
        prepared = self.memory.prepare(U, A, T, thinking=False, strategy="reject")
        self.assertEqual(0, prepared.missing_count)


class TestStrategies(RestoreTestCase):
    def test_the_reject_strategy_counts_the_missing_turns(self) -> None:
        with self.assertRaises(MissingReasoning) as caught:
            self.memory.prepare(U, A, T, A, T, assistant("final"), U2, strategy="reject")
        self.assertEqual(3, caught.exception.payload()["error"]["missing_reasoning_messages"])

    def test_the_reject_strategy_accepts_missing_soft_turns(self) -> None:
        self.assertEqual([FILLER], reasonings(self.memory.prepare(U, assistant("Hi"), U2, strategy="reject")))

    def test_the_placeholder_strategy_leaves_the_history_unchanged(self) -> None:
        prepared = self.memory.prepare(S, U, A, T, strategy="placeholder")
        self.assertEqual([FILLER], reasonings(prepared))
        self.assertEqual(4, len(prepared.request.messages))

    def test_the_recover_strategy_shows_its_notice_once(self) -> None:
        first = self.memory.prepare(S, U, A, T, U2)
        self.assertEqual(NOTICE, first.notice)
        self.assertTrue(first.has_transcript)
        answer = assistant("A2")
        self.memory.record((S, U, A, T, U2), answer, "after recovery")
        later = self.memory.prepare(S, U, A, T, U2, assistant(NOTICE + "A2"), user("U3"))
        self.assertEqual("", later.notice)
        self.assertEqual(first.request.messages, later.request.messages[:3])
        self.assertEqual(["after recovery"], reasonings(later))
        self.assertEqual("A2", later.request.messages[3].content)

    def test_a_notice_before_the_recovered_part_does_not_count_as_shown(self) -> None:
        prepared = self.memory.prepare(U, assistant(NOTICE + "Hi"), U2, A, T, user("U3"))
        self.assertEqual(NOTICE, prepared.notice)

    def test_a_faked_notice_makes_recovery_drop_no_history(self) -> None:
        prepared = self.memory.prepare(U, assistant(NOTICE + "Hi"), U2, assistant("x"), user("U3"))
        self.assertEqual(5, len(prepared.request.messages))

    def test_recovery_without_a_user_message_falls_back_to_the_placeholder(self) -> None:
        prepared = self.memory.prepare(S, A, T)
        self.assertEqual([FILLER], reasonings(prepared))
        self.assertFalse(prepared.has_transcript)

    def test_recovery_does_not_change_the_keys_of_the_answer(self) -> None:
        prepared = self.memory.prepare(S, U, A, T, U2)
        self.assertEqual(identity.identify(ME, (S, U, A, T, U2)).chains.exact, prepared.history.chains.exact)


class TestRetry(RestoreTestCase):
    def test_after_a_refusal_every_turn_with_a_filler_counts_as_missing(self) -> None:
        self.memory.record((U,), A, "known")
        final = assistant("plain")
        prepared = self.memory.prepare_second_attempt(U, A, T, U2, final, user("U3"))
        self.assertEqual((True, []), (prepared.has_transcript, reasonings(prepared)))
        self.assertEqual("U3", prepared.request.messages[-1].content)

    def test_after_a_refusal_turns_without_a_need_count_as_missing(self) -> None:
        """Some hosts require reasoning on every assistant message after a call, with tools or without."""
        history = (U, A, T, U2, assistant("foreign"), user("U3"))
        self.memory.record((U,), A, "")
        request = _request(history, False, True)
        refused = self.memory.prepare(*history, tools=False)
        prepared = prepare_second_attempt(request, self.memory.found, refused, "recover")
        self.assertEqual([], reasonings(prepared))

    def test_after_a_refusal_without_fillers_all_turns_count_as_missing(self) -> None:
        self.memory.record((U,), A, "known")
        self.assertEqual([], reasonings(self.memory.prepare_second_attempt(U, A, T)))

    def test_recovery_after_a_refusal_reaches_further_than_the_first(self) -> None:
        self.memory.record((U, A, T, U2), assistant("A2"), "")
        prepared = self.memory.prepare_second_attempt(U, A, T, U2, assistant("A2"), user("U3"))
        self.assertEqual(["system", "user"], [message.role for message in prepared.request.messages])

    def test_after_a_refusal_the_reject_strategy_answers_409(self) -> None:
        with self.assertRaises(MissingReasoning):
            self.memory.prepare_second_attempt(U, assistant("Hi"), U2, strategy="reject")


class TestGrownHistory(unittest.TestCase):
    """The cache of restored turns is used only while everything they depend on is the same."""

    def setUp(self) -> None:
        self.memory = Memory()
        self.chat: list[Message] = [S, U]
        for number in range(8):
            call_id = f"call_00_{number:024x}a"
            turn = assistant(block(f"thought {number}") + "I look.", (call_id, "read_file", "{}"))
            if number % 3:
                self.memory.record(self.chat, turn, f"thought {number}")
            self.chat += [turn, result(call_id), *([assistant("Well."), U2] if number % 2 else [])]

    def assert_restored_alike(self, *messages: Message, tools: bool = True, thinking: bool = True) -> None:
        known, new = (
            memory.prepare(*messages, strategy="placeholder", tools=tools, thinking=thinking)
            for memory in (self.memory, Memory(self.memory.found))
        )
        self.assertEqual((new.request, new.turns, new.aliases), (known.request, known.turns, known.aliases))

    def test_a_grown_history_is_restored_like_a_new_one(self) -> None:
        for count in (9, 12, len(self.chat), 14):
            self.assert_restored_alike(*self.chat[:count])

    def test_turns_that_were_sent_before_are_looked_up_once_in_a_hundred_requests(self) -> None:
        sizes: list[int] = []

        def find(keys: Collection[bytes]) -> dict[bytes, list[str]]:
            sizes.append(len(keys))
            return {key: list(self.memory.found[key]) for key in keys if key in self.memory.found}

        messages = self.chat[:-2]
        request, chats = _request(messages, True, True), self.memory.chats
        for _ in range(3 * 101):
            found = find_turns(ME, request, find, chats)
            prepared = prepare(found.request, found.history, found.stored, "placeholder", chats)
            self.memory.record_aliases(prepared)
        sent_keys = sum(message.role == "assistant" for message in messages)
        # The exact key of the last turn is always looked up.
        self.assertEqual({1: 200, sent_keys + 1: 2}, Counter(sizes[-202:]))

    def test_a_turn_that_was_sent_twice_is_not_looked_at_again(self) -> None:
        """16 chats of 200 turns took 1.6 times as long as one: every turn of theirs had left the CPU's cache."""
        found = self.memory.found

        def find(keys: Collection[bytes]) -> dict[bytes, list[str]]:
            return {key: list(found[key]) for key in keys if key in found}

        chat, looked_at, expected = [S, U], [], [S, U]
        with (
            mock.patch.object(restore, "_is_confirmed", side_effect=restore._is_confirmed) as confirmed,
            mock.patch.object(restore._RestoredTurn, "is_unchanged", autospec=True) as unchanged,
        ):
            unchanged.side_effect = lambda turn, need, sent: turn.sent is sent is not None and turn.turn.need is need
            for number in range(30):
                call_id = f"call_00_{number:024x}b"
                answer = assistant("I look.", (call_id, "read_file", "{}"))
                self.memory.record(chat, answer, f"thought {number}")
                chat += [answer, result(call_id)]
                expected += [answer._replace(reasoning=f"thought {number}"), result(call_id)]
                turns = find_turns(ME, _request(chat, True, True), find, self.memory.chats)
                prepared = prepare(turns.request, turns.history, turns.stored, "placeholder", self.memory.chats)
                self.memory.record_aliases(prepared)
                self.assertEqual(tuple(expected), prepared.request.messages)
                self.assertEqual(number + 1, len(prepared.turns))
                looked_at.append(confirmed.call_count + unchanged.call_count)
                confirmed.reset_mock()
                unchanged.reset_mock()
        self.assertLessEqual(max(looked_at[10:]), 6)

    def test_a_settled_chat_is_restored_like_a_new_one(self) -> None:
        chats, found = self.memory.chats, self.memory.found

        def find(keys: Collection[bytes]) -> dict[bytes, list[str]]:
            return {key: list(found[key]) for key in keys if key in found}

        ends = [at for at, message in enumerate(self.chat, 1) if message.role == "tool"]
        for end, tools in ((end, tools) for end in ends[2:] for tools in (True, True, False, True)):
            request = _request(self.chat[:end], tools, True)
            known, new = (find_turns(ME, request, find, memory) for memory in (chats, NO_CHAT))
            prepared = prepare(known.request, known.history, known.stored, "placeholder", chats)
            anew = prepare(new.request, new.history, new.stored, "placeholder")
            self.assertEqual((anew.request, anew.turns), (prepared.request, prepared.turns))
            self.memory.record_aliases(prepared)

    def test_a_cleared_store_is_cleared_for_chats_in_memory_too(self) -> None:
        request, chats, known = _request(self.chat[:-2], True, True), self.memory.chats, self.memory.found

        def find(keys: Collection[bytes]) -> dict[bytes, list[str]]:
            return {key: list(known[key]) for key in keys if key in known}

        for _ in range(3):
            found = find_turns(ME, request, find, chats)
            self.memory.record_aliases(prepare(found.request, found.history, found.stored, "placeholder", chats))
        self.assertTrue(found.stored)
        known.clear()
        self.assertEqual({}, find_turns(ME, request, find, chats).stored)

    def test_restored_messages_that_did_not_change_are_the_same_objects(self) -> None:
        """Encoded bytes are kept by these objects: 200 turns took 1.6 times as long when each last turn was new."""
        ends = [at for at, message in enumerate(self.chat, 1) if message.role == "tool"]
        before: tuple[Message, ...] = ()
        for end in ends[3:]:
            # From the second time on a turn is found by its sent key.
            for _ in range(2):
                prepared = self.memory.prepare(*self.chat[:end], strategy="placeholder")
                self.memory.record_aliases(prepared)
                pairs = zip(before, prepared.request.messages, strict=False)
                self.assertEqual([], [one for one, other in pairs if one == other and one is not other])
                before = prepared.request.messages

    def test_a_grown_history_is_restored_again_if_its_needs_change(self) -> None:
        for tools, thinking in ((True, True), (False, True), (True, False), (True, True)):
            self.assert_restored_alike(*self.chat, tools=tools, thinking=thinking)

    def test_a_grown_history_is_restored_again_if_the_store_changes(self) -> None:
        self.assert_restored_alike(*self.chat)
        for at, message in enumerate(self.chat):
            if message.role == "assistant":
                self.memory.record(self.chat[:at], message, f"another thought {at}")
                self.assert_restored_alike(*self.chat)
        self.memory.found.clear()
        self.assert_restored_alike(*self.chat)
