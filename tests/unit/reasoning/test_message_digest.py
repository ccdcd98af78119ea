import unittest

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.reasoning import message_digest
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
                computed = message_digest._compute(message)
                self.assertEqual(
                    [computed, computed],
                    [message_digest.digest_message(message), message_digest.digest_message(message)],
                )

    def test_every_field_of_a_message_changes_its_digest(self) -> None:
        one = assistant("x", ("call_1", "read", "{}"))
        others = [
            one._replace(content="y"),
            one._replace(role="user"),
            one._replace(name="n"),
            one._replace(tool_call_id=""),
            one._replace(tool_calls=()),
            assistant("x", ("call_1", "read", '{"a":1}')),
            assistant("x", ("call_1", "write", "{}")),
            assistant("x", ("call_2", "read", "{}")),
        ]
        self.assertEqual(
            1 + len(others), len({message_digest.digest_message(message).digest for message in (one, *others)})
        )

    def test_the_digest_of_a_message_never_changes(self) -> None:
        """Rows of older versions are found by these bytes."""
        message = assistant(SHOWN + "done", ("call_1", "read", '{"b": 1.0, "a": "…"}'))
        self.assertEqual(
            "37cca1265d2265daee4551be15850fa6a515fb9c81d20385df596b7bf89fc944",
            message_digest.digest_message(message).digest.hex(),
        )
