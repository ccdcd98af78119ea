import json
import random
import unittest
from collections.abc import Sequence
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.chat_memory import Lookup
from deepseek_cursor_proxy.conversation import UNNAMED, ChatName, Message, ToolCall
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE, NOTICE, PLAIN
from tests.support.histories import assistant, new_chat, result, system, user

ME = identity.namespace("https://api.deepseek.com", "sk-me")
CHAT = (system("s"), user("hi"), assistant("", ("call_1", "read", '{"a":1}')), result("call_1"), assistant("done"))


def _all(history: identity.History) -> set[bytes]:
    return {key for keys in history.keys if keys is not None for key in keys.record_keys()}


def tail(*messages: Message) -> bytes:
    return identity.History(ME, messages)._completed()._chains.exact


def call_tail(arguments: str) -> bytes:
    return tail(assistant("", ("a", "f", arguments)))


def keys_of(messages: Sequence[Message], index: int) -> identity.TurnKeys:
    found = identity.History(ME, messages).keys[index]
    assert found is not None
    return found


class TestIdentity(unittest.TestCase):
    def test_an_answer_is_stored_under_the_keys_its_echo_is_looked_up_under(self) -> None:
        """The law of this file."""
        for index, message in enumerate(CHAT):
            if message.role == "assistant":
                recorded = identity.History(ME, CHAT[:index]).answer_keys(message)
                self.assertEqual(recorded.record_keys(), keys_of(CHAT, index).record_keys())

    def test_a_key_contains_neither_credential_nor_text(self) -> None:
        for key in (ME, *_all(identity.History(ME, CHAT))):
            self.assertEqual(32, len(key))

    def test_harmless_edits_of_an_assistant_message_keep_its_identity(self) -> None:
        call = ("a", "f", '{"x": 1, "y": [1, 2]}')
        block, plain = (form.opening + "x" + form.closing for form in (COLLAPSIBLE, PLAIN))
        texts = ("done", "done\n", "  done", block + "done", plain + "done", NOTICE + "done", block + NOTICE + "done")
        same = [assistant(text, call) for text in texts]
        same += [assistant(before + block + "done", call) for before in ("\n ", NOTICE)]
        same += [assistant("done", ("a", "f", each)) for each in ('{"y":[1,2],"x":1}', '{"y":[1.0,2e0],"x":1.0}')]
        self.assertEqual(1, len({tail(user("hi"), message) for message in same}))

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
        self.assertEqual("3550270ae77a1534", tail(*CHAT).hex()[:16])


ID, OTHER_ID = "call_00_a1B2c3D4e5F6g7H8i9J0", "call_01_Z9y8X7w6V5u4T3s2R1q0"
LONG = "Here is what I found in the file."
U, U2, SAID = user("fix it"), user("go on"), assistant(LONG)
STRONG, WEAK = assistant("", (ID, "read", '{"a":1}')), assistant("", ("call_0", "read", '{"a":1}'))


class TestTurnKeys(unittest.TestCase):
    """Which key finds a turn after which edit: the reason for each key, and for their order."""

    def proofs(self, before: Sequence[Message], turn: Message, now: Sequence[Message]) -> list[str]:
        recorded, looked_up = identity.History(ME, before).answer_keys(turn), keys_of([*now, turn], -1)
        shared = {name: {*recorded.by_proof(name)} & {*looked_up.by_proof(name)} for name in identity.PROOFS}
        return [name for name in identity.PROOFS if shared[name]]

    def test_each_kind_of_key_survives_its_kind_of_edit(self) -> None:
        results = (STRONG, result(ID, "the file"))
        elided = (STRONG, result(ID, "[truncated]"))
        s, s2, u9, talked = system("S"), system("S2"), user("a summary"), (U, SAID, U2)
        for name, before, turn, now, expected in (
            ("nothing changed", (s, U), STRONG, (s, U), ["exact", "call", "near"]),
            ("another system prompt", (s, U), WEAK, (s2, U), ["near"]),
            ("a system prompt where there was none", (U,), WEAK, (s, U), ["near"]),
            ("a second prompt in front", (s, U), WEAK, (s, s, U), ["near"]),
            ("a reminder slipped in", (s, *talked), SAID, (s, U, SAID, s2, U2), ["near"]),
            ("the question edited, an id of DeepSeek's", (s, U), STRONG, (s, u9), ["call"]),
            ("the question edited, a short id", (s, U), WEAK, (s, u9), []),
            ("the question edited, a plain answer", (s, U), SAID, (s, u9), []),
            ("an old question edited", (s, *talked), SAID, (s, u9, SAID, U2), ["near"]),
            ("an old question edited, a short id", (s, *talked), WEAK, (s, u9, SAID, U2), ["near"]),
            ("an old question edited, a short answer", (U, assistant("ok"), U2), SAID, (u9, assistant("ok"), U2), []),
            ("the past compacted", (s, U, SAID, *talked), STRONG, (s, u9), ["call"]),
            ("the past compacted, the last round kept", (s, U, SAID, U, SAID, U2), WEAK, (u9, SAID, U2), ["near"]),
            ("nothing but the last round kept", (U, SAID, U, SAID, U2), WEAK, (SAID, U2), ["near"]),
            ("a result elided before a final answer", (U, *results), SAID, (U, *elided), ["result"]),
            ("everything around a final answer changed", (U, *results), SAID, (s, u9, *elided), ["result"]),
            ("a second answer after a result", (U, *results, SAID), WEAK, (u9, *elided, SAID), []),
            ("a short id, the same question, another past", (U, SAID, U2), WEAK, (u9, assistant("No."), U2), []),
            ("a short id under another first question", (U,), WEAK, (u9,), []),
        ):
            self.assertEqual(expected, self.proofs(before, turn, now), name)

    def test_turns_with_different_text_calls_or_arguments_share_no_key(self) -> None:
        for call in ((OTHER_ID, "read", '{"a":1}'), (ID, "write", '{"a":1}'), (ID, "read", '{"a":2}')):
            other = identity.History(ME, (U, assistant("", call)))
            self.assertFalse(_all(identity.History(ME, (U, STRONG))) & _all(other))

    def test_each_of_parallel_calls_is_a_key_of_its_turn(self) -> None:
        both = identity.History(ME, (U,)).answer_keys(assistant("", (ID, "a", "{}"), (OTHER_ID, "b", "{}")))
        split = keys_of((U, assistant("", (OTHER_ID, "b", "{}"))), 1)
        self.assertLess(set(split.call), set(both.call))

    def test_a_near_key_has_all_questions_since_the_answer(self) -> None:
        answer = assistant("An answer that is long enough.")
        one, two = (keys_of((U, answer, user(first), U2, SAID), -1).near for first in ("Delete it.", "Keep it."))
        self.assertNotEqual(one, two)

    def test_no_key_depends_on_the_clients_name_for_the_chat(self) -> None:
        """Clients name the chat in one shape of request and not in another."""
        names = (ChatName("chat-1", "Codex"), UNNAMED)
        named, other = (identity.History(ME, (U, SAID, U2, SAID), name) for name in names)
        self.assertEqual(_all(named), _all(other))

    def test_a_chat_is_identified_by_its_id_or_first_user_message(self) -> None:
        def chat(*messages: Message, namespace: bytes = ME, chat_id: str = "", client: str = "") -> bytes:
            return identity.History(namespace, messages, ChatName(chat_id, client)).conversation

        mine = chat(U)
        for same in ((U, SAID, U2), (system("s"), U), (system("t"), system("u"), U, SAID)):
            self.assertEqual(mine, chat(*same))
        named = chat(U, chat_id="chat-1")
        self.assertEqual(named, chat(system("s"), U2, chat_id="chat-1"))
        others = [chat(U2), chat(U, namespace=b"another caller"), named, chat(U, chat_id="chat-2"), chat()]
        others += [chat(U, client="Codex"), chat(U, client="opencode"), chat(U, chat_id="chat-1", client="Codex")]
        self.assertEqual(9, len({mine, *others}))

    def test_only_random_looking_call_ids_count_as_unique(self) -> None:
        unique = f"""
            {ID} call_abcDEF123ghiJKL456mnoPQ toolu_01A09q90qw90lq917835lq9 550e8400-e29b-41d4-a716-446655440000
            chatcmpl-tool-9f86d081884c7d659a2feaa0c55ad015
        """
        others = """
            call_0 call_1 functions.read_file:0 call_00_short call_000000000000000000000001 12345678901234567890
            call_aaaaaaaaaaaaaaaaaaaaaaaa subagent-tool-call-0001 call_readfilefromdiskandreport
            call_read_file_for_the_user_12 getUserByIdAndNameV2_call_001 2026-11-17T10-25-00_000001_Ab
        """
        for is_unique, ids in ((True, unique.split()), (False, ["", *others.split()])):
            for call_id in ids:
                self.assertEqual(is_unique, identity.is_unique_id(call_id), call_id)


class TestGrownHistory(unittest.TestCase):
    """The cache of identities does not change them."""

    def test_the_memory_counts_the_calls_that_the_keys_hold(self) -> None:
        memory, long = new_chat(), f'{{"text":"{"x" * 100_000}"}}'
        identity.History(ME, (*CHAT, assistant("", (long, "write", long))), memory=memory).answer_keys(SAID)
        once = memory.size
        whole = (*CHAT, assistant("", (long, "write", long)), result("a"))
        identity.History(ME, whole, memory=memory).answer_keys(SAID)
        self.assertTrue(2 * len(long) < once < memory.size < once + 2000, (once, memory.size))

    def test_what_no_turn_depends_on_is_digested_when_it_is_needed(self) -> None:
        for messages, early in (((U, SAID, U2), [U, SAID]), ((U, U2), [U]), ((U, SAID), [U, SAID])):
            digested: list[Message] = []
            digest = identity.digest_message

            def note(message: Message, digested: Any = digested, digest: Any = digest) -> Any:
                digested.append(message)
                return digest(message)

            with self.subTest(messages), mock.patch.object(identity, "digest_message", note):
                found = identity.History(ME, messages)
                self.assertEqual(early, digested)
                self.assertEqual(len(messages), len(found.outlines))
                self.assertEqual([each.role for each in messages], [each.role for each in found.outlines])
                # Each once: a question may have pictures of megabytes.
                self.assertEqual(list(messages), digested)

    def test_another_choice_that_finds_it_while_it_is_stored_gets_the_same(self) -> None:
        memory, store = new_chat(), Lookup.store
        choices: list[identity.History] = []

        def identify_again(lookup: Lookup[Any, Any], result: Any, size: int = 0) -> None:
            store(lookup, result, size)
            if not choices:
                choices.append(identity.History(ME, CHAT, memory=memory))

        first = identity.History(ME, CHAT, memory=memory)
        with mock.patch.object(Lookup, "store", identify_again):
            self.assertEqual(len(CHAT), len(first.outlines))
        self.assertEqual(_everything(first), _everything(choices[0]))
        self.assertEqual(_everything(identity.History(ME, CHAT)), _everything(first))

    def test_a_grown_history_is_identified_like_a_new_one(self) -> None:
        rng = random.Random(1)
        for chat in (UNNAMED, ChatName("a chat")):
            memory, whole = new_chat(), _some_messages(rng, 40)
            for _ in range(40):
                # Also from an earlier message on, in another way.
                whole = (*whole[: rng.randrange(8, 40)], *_some_messages(rng, rng.randrange(20)))
                grown = identity.History(ME, whole, chat, memory)
                self.assertEqual(_everything(identity.History(ME, whole, chat)), _everything(grown))


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
    keys = [each.record_keys() if each is not None else None for each in history.keys]
    answer = history.answer_keys(assistant("yes", (ID, "read", "{}"))).record_keys()
    return keys, history.outlines, history.blocks, history.conversation, answer


SHOWN = COLLAPSIBLE.opening + "thought" + COLLAPSIBLE.closing


class TestMessageDigest(unittest.TestCase):
    def test_every_field_of_a_message_changes_its_digest(self) -> None:
        one = assistant("x", ("call_1", "read", "{}"))
        fields = {"content": "y", "role": "user", "name": "n", "tool_call_id": "", "tool_calls": ()}
        calls = (("call_1", "read", '{"a":1}'), ("call_1", "write", "{}"), ("call_2", "read", "{}"))
        others = [one._replace(**{name: value}) for name, value in fields.items()]
        others += [assistant("x", call) for call in calls]
        self.assertEqual(9, len({identity.digest_message(message).digest for message in (one, *others)}))

    def test_the_digest_of_a_message_never_changes(self) -> None:
        """Rows of older versions are found by these bytes."""
        message = assistant(SHOWN + "done", ("call_1", "read", '{"b": 1.0, "a": "…"}'))
        digest = "37cca1265d2265daee4551be15850fa6a515fb9c81d20385df596b7bf89fc944"
        self.assertEqual(digest, identity.digest_message(message).digest.hex())
