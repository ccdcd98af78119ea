import dataclasses
import itertools
import unittest

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.display import COLLAPSIBLE, PLAIN
from deepseek_cursor_proxy.reasoning.recovery import NOTICE
from tests.histories import assistant, result, system, user

ME = identity.namespace("https://api.deepseek.com", "sk-me")
CHAT = (system("s"), user("hi"), assistant("", ("call_1", "read", '{"a":1}')), result("call_1"), assistant("done"))


def tail(*messages: Message, namespace: bytes = ME) -> bytes:
    return identity.identify(namespace, messages).tail


class TestIdentity(unittest.TestCase):
    def test_recording_and_looking_up_agree(self) -> None:
        """The one law of this file: what an answer is recorded under is what its echo is looked up under."""
        for index, message in enumerate(CHAT):
            if message.role == "assistant":
                recorded = identity.answer_keys(tail(*CHAT[:index]), message)
                self.assertEqual(recorded, identity.identify(ME, CHAT).keys[index])

    def test_only_assistants_have_keys(self) -> None:
        keys = identity.identify(ME, CHAT).keys
        self.assertEqual([0, 0, 1, 0, 1], [len(each) for each in keys])
        self.assertEqual([*keys[2], *keys[4]], identity.identify(ME, CHAT).all_keys())

    def test_reasoning_takes_no_part(self) -> None:
        with_reasoning = [dataclasses.replace(message, reasoning="whatever") for message in CHAT]
        self.assertEqual(tail(*CHAT), tail(*with_reasoning))

    def test_two_callers_share_nothing(self) -> None:
        for base_url, key in (("https://api.deepseek.com", "sk-you"), ("https://other.example", "sk-me")):
            other = identity.identify(identity.namespace(base_url, key), CHAT)
            self.assertFalse(set(other.all_keys()) & set(identity.identify(ME, CHAT).all_keys()))

    def test_a_key_holds_neither_the_credential_nor_the_text(self) -> None:
        for key in (ME, *identity.identify(ME, CHAT).all_keys()):
            self.assertEqual(32, len(key))

    def test_every_difference_makes_a_different_history(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
        histories = [
            (),
            (user("hi"),),
            (system("hi"),),
            (assistant("hi"),),
            (result("hi", "hi"),),
            (user("hi "),),
            (user("Hi"),),
            (user("h"), user("i")),
            (user("hi"), user("hi")),
            (user(""), user("hi")),
            (user("hi"), user("")),
            (Message("user", "hi", name="hi"),),
            (Message("user", "", name="hi"),),
            (Message("user", (picture,)),),
            (Message("user", (other,)),),
            (Message("user", (picture, picture)),),
            (Message("user", ({"type": "text", "text": "hi"}, picture)),),
            (user("é"),),
            (user("e\u0301"),),
            (user("\ud800"),),
            (user("\udc00"),),
            (assistant("hi", ("a", "f", "{}")),),
            (assistant("hi", ("b", "f", "{}")),),
            (assistant("hi", ("a", "g", "{}")),),
            (assistant("hi", ("a", "f", "{ }x")),),
            (assistant("hi", ("a", "f", '{"x":1}')),),
            (assistant("hi", ("a", "f", '{"x":"1"}')),),
            (assistant("hi", ("a", "f", "{}"), ("a", "f", "{}")),),
            (assistant("hi"), assistant("", ("a", "f", "{}"))),
            (assistant("", ("a", "fcall", "{}")),),
            (assistant("", ("acall", "f", "{}")),),
            (result("a", "b"),),
            (result("b", "a"),),
        ]
        for one, two in itertools.combinations(histories, 2):
            with self.subTest(one=one, two=two):
                self.assertNotEqual(tail(*one), tail(*two))

    def test_harmless_edits_of_an_assistant_change_nothing(self) -> None:
        call = ("a", "f", '{"x": 1, "y": [1, 2]}')
        same = [
            assistant("done", call),
            assistant("done\n", call),
            assistant("  done", call),
            assistant("done", ("a", "f", '{"y":[1,2],"x":1}')),
            assistant(COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing + "done", call),
            assistant(PLAIN.opening + "x" + PLAIN.closing + "done", call),
            assistant(NOTICE + "done", call),
            assistant(COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing + NOTICE + "done", call),
        ]
        self.assertEqual(1, len({tail(user("hi"), message) for message in same}))

    def test_blocks_in_what_others_say_are_their_words(self) -> None:
        block = COLLAPSIBLE.opening + "x" + COLLAPSIBLE.closing
        for make in (user, system):
            self.assertNotEqual(tail(make("hi")), tail(make(block + "hi")))

    def test_arguments_that_are_no_json_count_as_they_are(self) -> None:
        self.assertNotEqual(tail(assistant("", ("a", "f", '{"half'))), tail(assistant("", ("a", "f", '{"hal'))))
        deep = "[" * 100_000
        self.assertEqual(tail(assistant("", ("a", "f", deep))), tail(assistant("", ("a", "f", deep))))

    def test_the_canonical_form_is_pinned(self) -> None:
        """Changing it forgets everything people have stored: then raise the version in identity, and this digest."""
        self.assertEqual("d03e5257de65888f", tail(*CHAT).hex()[:16])
