import unittest
from collections.abc import Collection, Sequence

from deepseek_cursor_proxy.chat_memory import NO_CHAT, Chat
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.reasoning import echoes, identity
from deepseek_cursor_proxy.reasoning.restore import FoundTurns
from deepseek_cursor_proxy.reasoning.thinking_blocks import NOTICE
from tests.support.histories import TOOLS, assistant, new_chat, result, system, user, written_block

ME = identity.namespace("https://api.deepseek.com", "sk-me")
OTHER = identity.namespace("https://api.deepseek.com", "sk-other")
U, U2, T = user("U"), user("U2"), result("call_1")
CALL = ("call_1", "read_file", "{}")
THOUGHT = "\n Look at\n\n  a.py first. \n"
BLOCK = written_block(THOUGHT)


class Store:
    def __init__(self) -> None:
        self.found: dict[bytes, list[str]] = {}
        self.queries = 0

    def record(self, before: Sequence[Message], answer: Message) -> None:
        keys = identity.History(ME, before).answer_keys(answer)
        for key in (*keys.record_keys(), *echoes.record_keys(keys, answer)):
            self.found.setdefault(key, []).append(answer.reasoning or "")

    def find(self, keys: Collection[bytes]) -> dict[bytes, list[str]]:
        self.queries += 1
        return {key: self.found[key] for key in keys if key in self.found}

    def find_turns(self, *messages: Message, namespace: bytes = ME, memory: Chat = NO_CHAT) -> FoundTurns:
        return echoes.find_turns(namespace, ChatRequest("m", "m", messages, tuple(TOOLS)), self.find, memory)


class EchoTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.store = Store()

    def assert_unchanged(self, *messages: Message, namespace: bytes = ME) -> None:
        self.assertEqual(messages, self.store.find_turns(*messages, namespace=namespace).request.messages)


class TestEchoes(EchoTestCase):
    def test_an_echo_in_any_form_leaves_the_text_and_becomes_the_reasoning(self) -> None:
        for text, calls in (("Hi.", ()), ("", (CALL,)), ("Hi.", (CALL,)), ("\n\nHi.", ()), (" Hi. ", (CALL,))):
            said = assistant(text, *calls, reasoning=THOUGHT)
            for name, echo in {
                "in front": (assistant(THOUGHT + text, *calls),),
                "a blank line between": (assistant(f"{THOUGHT}\n\n{text}", *calls),),
                "trimmed": (assistant(THOUGHT.strip() + text, *calls),),
                "in one line": (assistant(" ".join(THOUGHT.split()) + text, *calls),),
                "with blank reasoning": (assistant(THOUGHT + text, *calls, reasoning=""),),
                "in a message of its own": (assistant(THOUGHT), assistant(text, *calls)),
                "before a block": (assistant(THOUGHT + BLOCK + text, *calls),),
                "before a notice": (assistant(THOUGHT + NOTICE + text, *calls),),
            }.items():
                with self.subTest(name, text=text, calls=calls):
                    self.setUp()
                    self.store.record((U,), said)
                    results = (T,) if calls else ()
                    found = self.store.find_turns(U, *echo, *results, U2)
                    clean = identity.History(ME, (U, said, *results, U2))
                    self.assertEqual(clean.outlines, found.history.outlines)
                    self.assertEqual(clean.answer_keys(U2).exact, found.history.answer_keys(U2).exact)
                    self.assertEqual(THOUGHT, found.request.messages[1].reasoning)
                    if "before" not in name:
                        self.assertEqual(said, found.request.messages[1])

    def test_a_text_like_the_reasoning_of_another_turn_stays_text(self) -> None:
        """Even before a call with the same arguments, and of an answer that was nothing but reasoning."""
        self.store.record((U,), assistant("", CALL, reasoning="Look here."))
        self.store.record((U,), assistant("", reasoning="Look there."))
        other = ("call_2", "read_file", "{}")
        self.assert_unchanged(user("Otherwise"), assistant("Look here.", other), result("call_2"), U2)
        self.assert_unchanged(user("Otherwise"), assistant("Look there."), U2)
        self.store.record((U,), assistant("elsewhere.", reasoning="Look"))
        self.assert_unchanged(user("Otherwise"), assistant(BLOCK + "Look elsewhere."), U2)

    def test_an_echo_is_found_after_the_prompt_and_older_messages_changed(self) -> None:
        self.store.record((system("You are A."), U), assistant("Hi.", reasoning=THOUGHT))
        found = self.store.find_turns(system("You are B."), user("Otherwise"), assistant(THOUGHT + "Hi."), U2)
        self.assertEqual(assistant("Hi.", reasoning=THOUGHT), found.request.messages[2])

    def test_text_that_is_no_echo_of_a_stored_turn_stays(self) -> None:
        self.store.record((U,), assistant("Hi.", reasoning=THOUGHT))
        self.store.record((U,), assistant("Hi.", CALL, reasoning=THOUGHT))
        for turn in (
            assistant(THOUGHT + "Hello."), assistant(THOUGHT), assistant(THOUGHT.strip()[:-1] + "Hi."),
            assistant("Hi." + THOUGHT), assistant(THOUGHT + "Hi.", ("call_1", "read_file", '{"path":"b"}')),
            assistant(THOUGHT + "Hi.", reasoning="My own."),
        ):  # fmt: skip
            self.assert_unchanged(U, turn, U2)
        self.assert_unchanged(U, user(THOUGHT + "Hi."), U2)

    def test_a_message_with_calls_is_no_echo(self) -> None:
        self.store.record((U,), assistant("Hi.", reasoning="Look here."))
        self.assert_unchanged(U, assistant("Look here.", CALL), assistant("Hi."), U2)

    def test_the_rest_of_a_turn_may_come_with_the_next_request(self) -> None:
        said, echo = assistant("Hi.", reasoning="Look here."), assistant("Look here.")
        self.store.record((U,), said)
        memory = new_chat()
        self.store.find_turns(U, echo, memory=memory)
        self.assertEqual(
            (U, said, U2), self.store.find_turns(U, echo, assistant("Hi."), U2, memory=memory).request.messages
        )

    def test_in_memory_the_echo_of_one_caller_is_found_by_no_other_with_the_same_bytes(self) -> None:
        said, memory = assistant("Hi.", reasoning="Look here."), new_chat()
        self.store.record((U,), said)
        sent = (U, assistant("Look here.Hi."), U2)
        for namespace, expected in ((ME, (U, said, U2)), (OTHER, sent), (ME, (U, said, U2))):
            found = self.store.find_turns(*sent, namespace=namespace, memory=memory)
            self.assertEqual(expected, found.request.messages)

    def test_words_that_two_stored_turns_divide_differently_stay(self) -> None:
        self.store.record((U,), assistant("and b", reasoning="a"))
        self.store.record((U,), assistant("b", reasoning="a and"))
        self.assert_unchanged(U, assistant("a and b"), U2)

    def test_an_answer_that_begins_with_its_reasoning_loses_nothing(self) -> None:
        said = assistant("Paris. It is Paris.", reasoning="Paris.")
        self.store.record((U,), said)
        self.assert_unchanged(U, said._replace(reasoning=None), U2)
        self.assert_unchanged(U, said, U2)
        found = self.store.find_turns(U, assistant("Paris.Paris. It is Paris."), U2)
        self.assertEqual(said, found.request.messages[1])


class TestTrimmedReasoning(EchoTestCase):
    def test_trimmed_reasoning_is_whole_again_although_all_messages_around_it_changed(self) -> None:
        """Qwen Code takes its reminders out of older messages."""
        self.store.record((user("reminder\nU"),), assistant("Hi.", reasoning=THOUGHT))
        echo = assistant("Hi.", reasoning=THOUGHT.strip())
        found = self.store.find_turns(U, echo, U2)
        self.assertEqual(assistant("Hi.", reasoning=THOUGHT), found.request.messages[1])
        self.assert_unchanged(U, echo._replace(content="Hi. And?"), U2)
        self.assert_unchanged(U, echo._replace(reasoning="Look elsewhere."), U2)
        self.assert_unchanged(U, echo, U2, namespace=OTHER)
