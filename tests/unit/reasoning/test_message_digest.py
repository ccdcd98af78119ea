import unittest

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.reasoning import identity
from deepseek_cursor_proxy.reasoning.thinking_blocks import COLLAPSIBLE
from tests.support.histories import assistant, result, system, user

SHOWN = COLLAPSIBLE.opening + "thought" + COLLAPSIBLE.closing
MESSAGES = (
    system("s"),
    user("hi \ud800 …"),
    Message("user", ({"type": "text", "text": "parts"},)),
    assistant(SHOWN + " done\n", ("call_1", "read", '{"b": 1.0, "a": [1e3]}'), ("call_2", "say", "free text")),
    result("call_1"),
    Message("user", "hi", name="me"),
)


class TestMessageDigest(unittest.TestCase):
    def test_a_memoized_digest_equals_a_computed_one(self) -> None:
        for message in MESSAGES:
            with self.subTest(message):
                found = [identity.digest_message(message) for _ in range(2)]
                self.assertEqual([identity._compute(message)] * 2, found)

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
