import itertools
import json
import random
import string
import unittest
from collections.abc import Sequence

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, NOTICE, PLAIN
from tests.support.histories import assistant, new_chat, result, system, user

ME = identity.namespace("https://api.deepseek.com", "sk-me")
CHAT = (system("s"), user("hi"), assistant("", ("call_1", "read", '{"a":1}')), result("call_1"), assistant("done"))


def _all(history: identity.History) -> set[bytes]:
    return {key for keys in history.keys if keys is not None for key in keys.record_keys()}


def tail(*messages: Message) -> bytes:
    return identity.identify(ME, messages).chains.exact


def call_tail(arguments: str) -> bytes:
    return tail(assistant("", ("a", "f", arguments)))


def keys_of(messages: Sequence[Message], index: int, conversation: str | None = None) -> identity.TurnKeys:
    found = identity.identify(ME, messages, conversation).keys[index]
    assert found is not None
    return found


class TestIdentity(unittest.TestCase):
    def test_an_answer_is_stored_under_the_keys_its_echo_is_looked_up_under(self) -> None:
        """The law of this file."""
        for index, message in enumerate(CHAT):
            if message.role == "assistant":
                recorded = identity.identify(ME, CHAT[:index]).answer_keys(message)
                self.assertEqual(recorded.record_keys(), keys_of(CHAT, index).record_keys())

    def test_computing_the_keys_of_an_answer_does_not_change_the_history(self) -> None:
        history = identity.identify(ME, CHAT)
        first, second = (history.answer_keys(assistant("a")).record_keys() for _ in range(2))
        self.assertEqual((first, tail(*CHAT)), (second, history.chains.exact))

    def test_only_assistant_messages_have_keys(self) -> None:
        keys = identity.identify(ME, CHAT).keys
        self.assertEqual([False, False, True, False, True], [each is not None for each in keys])

    def test_an_alias_key_is_never_one_of_the_keys_a_turn_is_stored_under(self) -> None:
        history = identity.identify(ME, CHAT)
        for keys, sent in zip(history.keys, history.sent_keys, strict=True):
            if keys is not None:
                self.assertFalse({keys.alias, sent} & {*keys.record_keys()})

    def test_the_sent_key_of_a_turn_depends_on_the_message_after_it(self) -> None:
        answer, other = assistant("the same"), user("another question")
        first = identity.identify(ME, (U, answer, U2))
        self.assertEqual([None, None], [first.sent_keys[0], first.sent_keys[2]])
        longer = identity.identify(ME, (U, answer, U2, answer, other))
        self.assertEqual(first.sent_keys[1], longer.sent_keys[1])
        elsewhere = identity.identify(ME, (U, answer, other))
        named = identity.identify(ME, (U, answer, U2), "a chat")
        self.assertEqual(3, len({first.sent_keys[1], elsewhere.sent_keys[1], named.sent_keys[1]}))

    def test_reasoning_does_not_change_the_identity_of_a_history(self) -> None:
        with_reasoning = [message._replace(reasoning="whatever") for message in CHAT]
        self.assertEqual(tail(*CHAT), tail(*with_reasoning))

    def test_two_callers_share_no_key(self) -> None:
        for base_url, key in (("https://api.deepseek.com", "sk-you"), ("https://other.example", "sk-me")):
            other = identity.identify(identity.namespace(base_url, key), CHAT)
            self.assertFalse(_all(other) & _all(identity.identify(ME, CHAT)))

    def test_a_key_contains_neither_credential_nor_text(self) -> None:
        for key in (ME, *_all(identity.identify(ME, CHAT))):
            self.assertEqual(32, len(key))

    def test_every_difference_in_a_message_gives_another_history_digest(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
        texts = ("hi", "hi ", "Hi", "é", "e\u0301", "\ud800", "\udc00")
        parts = ((image,), (other,), (image, image), ({"type": "text", "text": "hi"}, image))
        call, arguments = ("a", "f", "{}"), ("{}", "{ }x", '{"x":1}', '{"x":"1"}')
        calls = (("b", "f", "{}"), ("a", "g", "{}"), *(("a", "f", each) for each in arguments))
        pairs = ((user("h"), user("i")), (user("hi"), user("hi")), (user(""), user("hi")), (user("hi"), user("")))
        single = [
            *map(user, texts),
            *(Message("user", each) for each in parts),
            *(assistant("hi", each) for each in calls),
        ]
        single += [Message("user", text, name="hi") for text in ("hi", "")]
        single += [system("hi"), assistant("hi"), result("hi", "hi"), result("a", "b"), result("b", "a")]
        single += [
            assistant("hi", call, call),
            assistant("", ("a", "fcall", "{}")),
            assistant("", ("acall", "f", "{}")),
        ]
        histories = [(), *((each,) for each in single), *pairs, (assistant("hi"), assistant("", call))]
        self.assertEqual(33, len(histories))
        for one, two in itertools.combinations(histories, 2):
            with self.subTest(one=one, two=two):
                self.assertNotEqual(tail(*one), tail(*two))

    def test_harmless_edits_of_an_assistant_message_keep_its_identity(self) -> None:
        call = ("a", "f", '{"x": 1, "y": [1, 2]}')
        block, plain = (form.opening + "x" + form.closing for form in (COLLAPSIBLE, PLAIN))
        texts = ("done", "done\n", "  done", block + "done", plain + "done", NOTICE + "done", block + NOTICE + "done")
        same = [assistant(text, call) for text in texts]
        same += [assistant("done", ("a", "f", each)) for each in ('{"y":[1,2],"x":1}', '{"y":[1.0,2e0],"x":1.0}')]
        self.assertEqual(1, len({tail(user("hi"), message) for message in same}))

    def test_thinking_blocks_in_other_roles_count_as_text(self) -> None:
        block = COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing
        for make in (user, system):
            self.assertNotEqual(tail(make("hi")), tail(make(block + "hi")))

    def test_free_text_of_a_custom_call_has_the_identity_of_its_object(self) -> None:
        for text in ("*** Begin Patch", "[1]"):
            self.assertEqual(call_tail(text), call_tail(json.dumps({"input": text})))

    def test_arguments_that_are_no_json_are_identified_as_text(self) -> None:
        self.assertNotEqual(call_tail('{"half'), call_tail('{"hal'))
        deep = "[" * 100_000
        self.assertEqual(call_tail(deep), call_tail(deep))

    def test_numbers_that_javascript_rounds_have_the_same_identity(self) -> None:
        for one, two in (("12345678901234567890", "12345678901234567000"), ("1e21", "1e+21"), ("1.0", "1")):
            self.assertEqual(call_tail(f'{{"n":{one}}}'), call_tail(f'{{"n":{two}}}'))
        self.assertNotEqual(call_tail('{"n":1}'), call_tail('{"n":2}'))
        huge = '{"n":' + "9" * 400 + "}"
        self.assertEqual(call_tail(huge), call_tail(huge))

    def test_empty_arguments_have_one_identity_however_they_are_written(self) -> None:
        self.assertEqual(1, len({call_tail(written) for written in ("", "{}", " { } ")}))

    def test_the_identity_of_a_history_never_changes_between_releases(self) -> None:
        """A change loses all stored reasoning: raise the version in identity, and change this digest."""
        self.assertEqual("6e5e3b8aae73bce2", tail(*CHAT).hex()[:16])


ID, OTHER_ID = "call_00_a1B2c3D4e5F6g7H8i9J0", "call_01_Z9y8X7w6V5u4T3s2R1q0"
LONG = "Here is what I found in the file."
U, U2, SAID = user("fix it"), user("go on"), assistant(LONG)
STRONG, WEAK = assistant("", (ID, "read", '{"a":1}')), assistant("", ("call_0", "read", '{"a":1}'))


class TestTurnKeys(unittest.TestCase):
    """Which key finds a turn after which edit: the reason for each key, and for their order."""

    def proofs(self, before: Sequence[Message], turn: Message, now: Sequence[Message]) -> list[str]:
        recorded, looked_up = identity.identify(ME, before).answer_keys(turn), keys_of([*now, turn], -1)
        kinds = [proof for proof in identity.PROOFS if proof != "alias"]
        shared = {name: set(recorded.by_proof(name)) & set(looked_up.by_proof(name)) for name in kinds}
        return [name for name in kinds if shared[name]]

    def test_each_kind_of_key_survives_its_kind_of_edit(self) -> None:
        results = (STRONG, result(ID, "the file"))
        elided = (STRONG, result(ID, "[truncated]"))
        s, s2, u9, talked = system("S"), system("S2"), user("a summary"), (U, SAID, U2)
        for name, before, turn, now, expected in (
            ("nothing changed", (s, U), STRONG, (s, U), ["exact", "call", "dialogue"]),
            ("another system prompt", (s, U), WEAK, (s2, U), ["dialogue"]),
            ("a system prompt where there was none", (U,), WEAK, (s, U), ["dialogue"]),
            ("a second prompt in front", (s, U), WEAK, (s, s, U), []),
            ("a third prompt in front", (s, s, U), WEAK, (s, s, s, U), []),
            ("one of two prompts rewritten", (s, s, U), WEAK, (s, s2, U), ["dialogue"]),
            ("a reminder slipped in", (s, *talked), SAID, (s, U, SAID, s2, U2), ["dialogue", "round"]),
            ("the question edited, an id of DeepSeek's", (s, U), STRONG, (s, u9), ["call"]),
            ("the question edited, a short id", (s, U), WEAK, (s, u9), []),
            ("the question edited, a plain answer", (s, U), SAID, (s, u9), []),
            ("an old question edited", (s, *talked), SAID, (s, u9, SAID, U2), ["round"]),
            ("an old question edited, a short id", (s, *talked), WEAK, (s, u9, SAID, U2), ["round"]),
            ("the past compacted", (s, U, SAID, *talked), STRONG, (s, u9), ["call"]),
            ("the past compacted, the last round kept", (s, U, SAID, U, SAID, U2), WEAK, (u9, SAID, U2), ["round"]),
            ("a result elided before a final answer", (U, *results), SAID, (U, *elided), ["result"]),
            ("everything around a final answer changed", (U, *results), SAID, (s, u9, *elided), ["result"]),
            ("a short id, the same question, another past", (U, SAID, U2), WEAK, (u9, assistant("No."), U2), []),
            ("a short id under another first question", (U,), WEAK, (u9,), []),
        ):
            with self.subTest(name):
                self.assertEqual(expected, self.proofs(before, turn, now))

    def test_turns_with_different_text_calls_or_arguments_share_no_key(self) -> None:
        for call in ((OTHER_ID, "read", '{"a":1}'), (ID, "write", '{"a":1}'), (ID, "read", '{"a":2}')):
            other = identity.identify(ME, (U, assistant("", call)))
            self.assertFalse(_all(identity.identify(ME, (U, STRONG))) & _all(other))

    def test_each_of_parallel_calls_is_a_key_of_its_turn(self) -> None:
        both = identity.identify(ME, (U,)).answer_keys(assistant("", (ID, "a", "{}"), (OTHER_ID, "b", "{}")))
        split = keys_of((U, assistant("", (OTHER_ID, "b", "{}"))), 1)
        self.assertLess(set(split.call), set(both.call))

    def test_a_conversation_id_makes_keys_narrower_and_never_wider(self) -> None:
        named, other = (keys_of((U, SAID, U2, SAID), 3, chat) for chat in ("chat-1", "chat-2"))
        self.assertEqual(named.exact, other.exact)
        self.assertFalse({named.dialogue, *named.round} & {other.dialogue, *other.round})

    def test_a_chat_is_identified_by_its_id_or_first_user_message(self) -> None:
        def chat(*messages: Message, namespace: bytes = ME, conversation: str | None = None) -> bytes:
            return identity.identify(namespace, messages, conversation).conversation

        mine = chat(U)
        for same in ((U, SAID, U2), (system("s"), U), (system("t"), system("u"), U, SAID)):
            self.assertEqual(mine, chat(*same))
        named = chat(U, conversation="chat-1")
        self.assertEqual(named, chat(system("s"), U2, conversation="chat-1"))
        others = (chat(U2), chat(U, namespace=b"another caller"), named, chat(U, conversation="chat-2"), chat())
        self.assertEqual(6, len({mine, *others}))

    def test_the_digest_of_a_message_does_not_depend_on_its_position(self) -> None:
        one, two = (identity.identify(ME, messages).outlines for messages in ((U, SAID), (system("s"), U, SAID)))
        self.assertEqual(one, two[1:])
        self.assertEqual(3, len(set(two)))

    def test_a_turn_stored_with_a_conversation_id_is_found_without_one(self) -> None:
        recorded = set(identity.identify(ME, (U, SAID, U2), "chat-1").answer_keys(SAID).record_keys())
        for conversation, is_found in ((None, True), ("chat-1", True), ("chat-2", False)):
            keys = keys_of((system("new"), U, SAID, U2, SAID), 4, conversation)
            self.assertEqual(is_found, bool({*keys.dialogue, *keys.round} & recorded))

    def test_a_short_previous_text_gives_a_turn_no_round_key(self) -> None:
        """However long the turn itself is: another agent may answer the same to "go on"."""
        for turn in (assistant("ok"), assistant("", ("call_0", "read", '{"path":"src/deepseek/parser.py"}'))):
            self.assertEqual((), keys_of((U, assistant("ok"), U2, turn), 3).round)

    def test_only_random_looking_call_ids_count_as_unique(self) -> None:
        unique = f"""
            {ID} call_abcDEF123ghiJKL456mnoPQ toolu_01A09q90qw90lq917835lq9 550e8400-e29b-41d4-a716-446655440000
            chatcmpl-tool-9f86d081884c7d659a2feaa0c55ad015
        """
        others = """
            call_0 call_1 functions.read_file:0 call_00_short call_000000000000000000000001 12345678901234567890
            call_aaaaaaaaaaaaaaaaaaaaaaaa subagent-tool-call-0001 call_readfilefromdiskandreport
        """
        for is_unique, ids in ((True, unique.split()), (False, ["", *others.split()])):
            for call_id in ids:
                with self.subTest(call_id):
                    self.assertEqual(is_unique, identity.is_unique_id(call_id))

    def test_base64url_call_ids_are_unique_and_words_with_counters_are_not(self) -> None:
        rng = random.Random(0)
        alphabet = string.ascii_letters + string.digits + "-_"
        ids = ["".join(rng.choices(alphabet, k=rng.choice((20, 21, 22, 32)))) for _ in range(1000)]
        for prefix in ("", "call_", "toolu_", "chatcmpl-tool-"):
            taken = sum(identity.is_unique_id(prefix + each) for each in ids)
            self.assertGreater(taken, 940, prefix)
        for unique in ("V1StGXR8_Z5jdHi6B-myT", "call_V1StGXR8_Z5jdHi6B-myT", "toolu_3q2-7wRt_9ZxK4bLm8vQnA"):
            self.assertTrue(identity.is_unique_id(unique), unique)
        counted = f"""
            call_read_file_for_the_user_12 getUserByIdAndNameV2_call_001 2026-11-17T10-25-00_000001_Ab
            Agent-7_Step-12_ReadFile-3_v2 my-app_v1-0-2_Run-A1_B2_C3_D4 1763372700123_readFile_01-0002
            call_V1StGXR8_Z5jdHi6 {"a-" * 20}
        """
        for each in counted.split():
            self.assertFalse(identity.is_unique_id(each), each)


class TestGrownHistory(unittest.TestCase):
    """The cache of identities does not change them."""

    def test_a_grown_history_is_identified_like_a_new_one(self) -> None:
        rng = random.Random(1)
        for chat in (None, "a chat"):
            memory, whole = new_chat(), _some_messages(rng, 40)
            for _ in range(40):
                # Also from an earlier message on, in another way.
                whole = (*whole[: rng.randrange(8, 40)], *_some_messages(rng, rng.randrange(20)))
                grown = identity.identify(ME, whole, chat, memory)
                self.assertEqual(_everything(identity.identify(ME, whole, chat)), _everything(grown))

    def test_callers_and_chats_with_equal_histories_share_no_identity(self) -> None:
        whole = _some_messages(random.Random(2), 12)
        memory = new_chat()
        mine, others = (identity.identify(namespace, whole, None, memory) for namespace in (ME, b"you"))
        self.assertTrue(_all(mine).isdisjoint(_all(others)))
        self.assertNotEqual(mine.conversation, identity.identify(ME, whole, "a chat", memory).conversation)


def _some_messages(rng: random.Random, count: int) -> tuple[Message, ...]:
    messages = []
    for _ in range(count):
        role = rng.choice(["system", "user", "assistant", "assistant", "tool"])
        calls = tuple(ToolCall(f"call_00_{rng.getrandbits(96):024x}", "read", "{}") for _ in range(rng.randrange(3)))
        call_id = f"call_00_{rng.getrandbits(96):024x}" if role == "tool" else None
        content = rng.choice(["ok", "go on", "a sentence that is long enough to prove its place"])
        messages.append(Message(role, content, None, calls if role == "assistant" else (), call_id))
    return tuple(messages)


def _everything(history: identity.History) -> object:
    keys = [(each.record_keys(), each.alias) if each is not None else None for each in history.keys]
    answer = history.answer_keys(assistant("yes", (ID, "read", "{}"))).record_keys()
    return keys, history.outlines, history.blocks, history.conversation, history.chains.exact, answer
