"""The law of searches in Messages: what DeepSeek sent is what the client gets, and what DeepSeek gets back.

Answers are generated lists of blocks: thoughts, texts with sources, searches with results and errors, results of kinds
that nobody knows yet, calls. Clients send them back in every way that loses nothing but thoughts. Seeded.
"""

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.fake_deepseek import BlockAnswer
from tests.laws.test_chats import words
from tests.support.laws import check_law
from tests.support.messages_client import TOOLS, Json, MessagesTestCase, result, user
from tests.support.width import width

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
MARK = {"cache_control": {"type": "ephemeral"}}


class Blocks:
    """Generates the blocks of answers, each with ids of its own."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def answer(self) -> list[Json]:
        blocks: list[Json] = []
        for _ in range(self._rng.randint(1, 5)):
            # Two thoughts in a row are one: nothing shows where the first ended.
            if self._rng.random() < 0.6 and not (blocks and blocks[-1]["type"] == "thinking"):
                blocks.append({"type": "thinking", "thinking": f"Thought {self._next()}: {words(self._rng, 4)}"})
            blocks += self._rng.choice((self._search, self._text, self._text, self._search))()
        if not any(block["type"] == "server_tool_use" for block in blocks):
            blocks += self._search()
        blocks += [self._call() for _ in range(self._rng.choice((0, 0, 1, 2)))]
        return blocks

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _text(self) -> list[Json]:
        text: Json = {"type": "text", "text": f"Text {self._next()}: {words(self._rng, 4)}"}
        if self._rng.random() < 0.5:
            count = self._rng.randint(1, 3)
            text["citations"] = [
                {"type": "web_search_result_location", "url": f"u{at}", "x": "é"} for at in range(count)
            ]
        return [text]

    def _search(self) -> list[Json]:
        use_id = f"srvtoolu_{self._next()}"
        use = {"type": "server_tool_use", "id": use_id, "name": "web_search", "input": {"query": words(self._rng, 3)}}
        page = {"type": "web_search_result", "url": "u", "title": words(self._rng, 2), "encrypted_content": "x"}
        error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
        kind, content = self._rng.choice(
            (
                ("web_search_tool_result", [page] * self._rng.randint(0, 3)),
                ("web_search_tool_result", error),
                ("tomorrow_tool_result", {"type": "page", "deep": [{"er": None}]}),
            )
        )
        return [use, {"type": kind, "tool_use_id": use_id, "content": content}]

    def _call(self) -> Json:
        call_id = f"call_{self._next():02}_{self._rng.getrandbits(80):020x}"
        return {
            "type": "tool_use", "id": call_id, "name": "read_file", "input": {"path": words(self._rng, 2), "n": [1]},
        }  # fmt: skip


class Turn(NamedTuple):
    """An answer, and whether its client sent back where the thoughts in it were."""

    blocks: list[Json]
    has_places: bool


def plain(blocks: list[Json]) -> list[Json]:
    return [block for block in blocks if block["type"] != "thinking"]


def thoughts(blocks: list[Json]) -> list[str]:
    return [block["thinking"] for block in blocks if block["type"] == "thinking"]


def echoes(blocks: list[Json]) -> Iterator[list[Json]]:
    """The ways in which clients send a turn back."""
    yield blocks
    yield [{**block, "thinking": ""} if block["type"] == "thinking" else block for block in blocks]
    yield [{**block, "signature": ""} if block["type"] == "thinking" else block for block in blocks]
    yield plain(blocks)
    yield [*blocks[:-1], {**blocks[-1], **MARK}]


class TestSearches(MessagesTestCase):
    def test_every_block_comes_and_goes_back_as_it_is(self) -> None:
        check_law(range(width(8, 150)), self.play_chat)
        self.assertEqual([], self.fake.refused)

    def play_chat(self, seed: int) -> Iterator[None]:
        rng, proxy = random.Random(seed), self.running
        generated = Blocks(rng)
        history = [user(f"Chat {rng.random()}")]
        turns: list[Turn] = []
        before: list[Json] = []
        for number in range(4):
            blocks = generated.answer()
            self.fake.answer(BlockAnswer(blocks=tuple(blocks), piece=rng.choice((1, 7, 100))))
            options: Json = {"tools": [*TOOLS, SEARCH], "stream": rng.random() < 0.6}
            if rng.random() < 0.3:
                options["thinking"] = None
            message = self.complete(proxy, *history, **options)
            self.check_answer(message, blocks, has_thinking="thinking" not in options)
            before = self.check_request(turns, before)
            echo = rng.choice(list(echoes(message["content"])))
            history.append({"role": "assistant", "content": echo})
            turns.append(Turn(blocks, has_places=len(thoughts(echo)) == len(thoughts(blocks))))
            calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
            said = [result(call_id, f"result {number}") for call_id in calls]
            history.append(user(*said, {"type": "text", "text": f"Go on, {number}."}))
            yield

    def check_answer(self, message: Json, blocks: list[Json], *, has_thinking: bool) -> None:
        self.assertEqual(plain(blocks), plain(message["content"]))
        found = [{**block, "signature": ""} for block in message["content"] if block["type"] == "thinking"]
        self.assertEqual(thoughts(blocks) if has_thinking else [], thoughts(found))

    def check_request(self, turns: list[Turn], before: list[Json]) -> list[Json]:
        """DeepSeek got every turn as it sent it, after all that it got before."""
        sent: list[Json] = json.loads(self.fake.seen[-1].body)["messages"]
        self.assertEqual(before, sent[: len(before)])
        answers: list[Any] = [message["content"] for message in sent if message["role"] == "assistant"]
        self.assertEqual(len(turns), len(answers))
        for turn, answer in zip(turns, answers, strict=True):
            self.assertEqual(plain(turn.blocks), plain(answer))
            self.assertEqual("".join(thoughts(turn.blocks)) or " ", "".join(thoughts(answer)))
            if turn.has_places and thoughts(turn.blocks):
                self.assertEqual(turn.blocks, answer)
        return sent
