import random
import unittest
from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta, Message
from deepseek_cursor_proxy.features.encryption import Opener, Sealer
from deepseek_cursor_proxy.features.responses import fields as responses
from deepseek_cursor_proxy.protocols import input_items
from deepseek_cursor_proxy.protocols.tools import ToolNames, echoed_message
from tests.support import generated_answers as generated
from tests.support.generated_answers import CUSTOM, FUNCTION, INNER, INNER_CUSTOM, MARK, REQUEST, message, writer
from tests.support.histories import assistant, user
from tests.support.responses_client import Json, question

LARGEST = 1_000_000
SEALED = {"include": ["reasoning.encrypted_content"]}


def written(*deltas: Delta, **options: object) -> list[Json]:
    return written_batches([deltas], **options)


def written_batches(some: Iterable[Any], **options: object) -> list[Json]:
    writing = writer(**options)
    for batch in some:
        writing.write(batch)
    writing.end()
    assert writing.response is not None
    return list(writing.response["output"])


def read(*items: Json) -> list[Message]:
    return list(input_items.read(list(items), tools=ToolNames(upstream=generated.UPSTREAM_NAMES)).messages)


def calling(index: int, name: str, arguments: str) -> Delta:
    return Delta(calls=(CallPiece(index, f"call_{index}", name, arguments),))


class TestRoundTrip(unittest.TestCase):
    def test_output_items_of_any_answer_read_back_as_the_same_turn(self) -> None:
        for seed in range(200):
            rng = random.Random(seed)
            found = list(generated.batches(rng, generated.stream(rng, generated.answer(rng))))
            echo = echoed_message(message(found), REQUEST.custom_tools)
            items = written_batches(found)
            with self.subTest(seed=seed):
                expected = echo._replace(reasoning=echo.reasoning or None)
                self.assertEqual([user("q"), expected, user("n")], read(question("q"), *items, question("n")))

    def test_output_items_of_two_answers_stay_two_turns(self) -> None:
        first = written(Delta(reasoning="a"), calling(0, FUNCTION, "{}"))
        other = written(Delta(reasoning="b", text="y"))
        second = [{**item, "id": item["id"].replace(MARK, "f" * 32)} for item in other]
        self.assertEqual(["a", "b"], [turn.reasoning for turn in read(*first, *second)])

    def test_output_items_without_ids_are_one_turn(self) -> None:
        """opencode drops them."""
        items = written(Delta(reasoning="a"), Delta(text="x"), calling(0, FUNCTION, "{}"), calling(1, FUNCTION, "{}"))
        bare = [{name: item[name] for name in item if name != "id"} for item in items]
        self.assertEqual(read(*items), read(*bare))

    def test_call_items_have_the_clients_tool_name_and_form(self) -> None:
        for name, arguments, kind, expected in (
            (FUNCTION, '{"a": 1}', "function_call", {"name": FUNCTION, "arguments": '{"a": 1}'}),
            (CUSTOM, '{"input": "*** Begin"}', "custom_tool_call", {"name": CUSTOM, "input": "*** Begin"}),
            (INNER, "{}", "function_call", {"name": "spawn", "namespace": "agents", "arguments": "{}"}),
            (INNER_CUSTOM, '{"input":"x"}', "custom_tool_call", {"name": "patch", "namespace": "agents", "input": "x"}),
        ):
            with self.subTest(name):
                [item] = written(calling(0, name, arguments))
                shared = {"type": kind, "call_id": "call_0", "status": "completed"}
                self.assertEqual({**shared, **expected}, {key: item[key] for key in item if key != "id"})
                [turn] = read(item)
                self.assertEqual(name, turn.tool_calls[0].name)


class TestSealedReasoning(unittest.TestCase):
    def test_encrypted_content_of_ours_reads_back_as_the_reasoning(self) -> None:
        sealer = Sealer(b"secret", b"caller")
        for text in ("A thought.", "思\U0001f600\n\n</details>", "\ud83d", "x" * 100_000):
            [item] = written(Delta(reasoning=text), **SEALED)
            for content in (None, [], item["content"]):
                [found] = responses.unseal([{**item, "content": content}], Opener(sealer, LARGEST))
                self.assertEqual([assistant("", reasoning=text)], read(found))

    def test_plain_reasoning_wins_over_encrypted_content(self) -> None:
        [item] = written(Delta(reasoning="sealed"), **SEALED)
        plain = {**item, "content": [{"type": "reasoning_text", "text": "plain"}]}
        self.assertEqual([plain], responses.unseal([plain], Opener(Sealer(b"secret", b"caller"), LARGEST)))

    def test_foreign_encrypted_content_stays_unchanged(self) -> None:
        [item] = written(Delta(reasoning="sealed"), **SEALED)
        mine, sealed = Sealer(b"secret", b"caller"), item["encrypted_content"]
        others = ((Sealer(b"secret", b"another"), sealed), (Sealer(b"another", b"caller"), sealed))
        for sealer, content in (*others, (mine, sealed[:-1]), (mine, 7), (mine, None)):
            foreign = {**item, "content": None, "encrypted_content": content}
            self.assertEqual([foreign], responses.unseal([foreign], Opener(sealer, LARGEST)))
