"""The law of this project for searches: an answer goes back to DeepSeek as it came, whatever the client drops of it."""

import itertools
import json
import random
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from deepseek_cursor_proxy.conversation import Batch, ChatRequest, Delta, Message, Reply
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.features.encryption import Opener, Sealer
from deepseek_cursor_proxy.features.responses import fields
from deepseek_cursor_proxy.features.web_search.responses_api import ResponseReader, payload
from deepseek_cursor_proxy.protocols import input_items
from deepseek_cursor_proxy.reasoning import server_turns
from deepseek_cursor_proxy.reasoning.identity import History, digest_message
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest
from tests.fake_deepseek import Answer, Call, Search
from tests.fake_deepseek.completion import PrefixCache
from tests.fake_deepseek.native import Response
from tests.support.generated_answers import writer
from tests.support.laws import check_law
from tests.support.responses_client import Json, check_stream, events, question
from tests.support.width import width

CALLER = b"caller"
ASKED = {
    "model": "deepseek-flash",
    "messages": [{"role": "user", "content": "q"}],
    "server_tools": [{"type": "web_search"}],
}
WORDS = ("Hm. ", " rain? \n", "\U0001f600 – 雨", "</details>", "{}", "\n\n")
SEALED = {"include": ["reasoning.encrypted_content"]}


def some_words(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS, k=rng.randrange(3)))


def some_search(rng: random.Random) -> Search:
    action: Json = rng.choice(
        (
            {"queries": (some_words(rng), "b")},
            {"url": "https://a.example"},
            {"url": "https://a.example", "pattern": "rain"},
            {"raw": json.dumps({"type": "odd_call", "id": f"odd_{rng.random()}", "data": [{"a": None}]})},
            {"raw": json.dumps({"type": "web_search_call", "id": f"ws_{rng.random()}", "action": {"queries": ["c"]}})},
        )
    )
    before = {"reasoning": some_words(rng), "text": some_words(rng)}
    status = rng.choice(("completed", "completed", "failed"))
    return Search(**action, **before, status=status, has_id=rng.random() < 0.8)


def some_answer(rng: random.Random) -> Answer:
    calls = tuple(Call(f"call_{index:02}_{rng.randbytes(12).hex()}", "look", "{}") for index in range(rng.randrange(3)))
    searches = tuple(some_search(rng) for _ in range(rng.randint(1, 4)))
    return Answer(some_words(rng), some_words(rng), calls, piece=rng.choice((1, 3, 50)), searches=searches)


def some_case(seed: int) -> tuple[int, Answer]:
    return seed, some_answer(random.Random(f"answer {seed}"))


def read(rng: random.Random, response: Response) -> Iterator[Batch]:
    data, reader, at = b"".join(response.events()), ResponseReader(), 0
    while at < len(data):
        end = at + rng.choice((7, 50, 400, 100_000))
        found = reader.read(data[at:end])
        assert found.problem is None, found.problem
        yield found.batch
        at = end


def without(item: Json, *names: str) -> Json:
    return {name: value for name, value in item.items() if name not in names}


def as_codex(item: Json) -> Json:
    if item["type"] == "web_search_call":
        item = {"type": item["type"], "status": item["status"], "action": item["action"]}
    return without(item, "id")


def shuffled(item: Json) -> Json:
    return dict(reversed([*item.items()])) | {"status": "completed"}


# What clients make of the items of an answer when they send them back.
ECHOES: dict[str, Callable[[list[Json]], list[Json]]] = {
    "whole": list,
    "no ids": lambda items: [without(item, "id") for item in items],
    "as Codex": lambda items: list(map(as_codex, items)),
    "no reasoning": lambda items: [item for item in items if item["type"] != "reasoning"],
    "no reasoning, as Codex": lambda items: [as_codex(item) for item in items if item["type"] != "reasoning"],
    "sealed": lambda items: [{**item, "content": []} if item["type"] == "reasoning" else item for item in items],
    "in another order of fields": lambda items: list(map(shuffled, items)),
}


class TestSearches(unittest.TestCase):
    def test_an_answer_with_searches_goes_back_as_it_came(self) -> None:
        cases = itertools.product(map(some_case, range(width(60, 2_000, 20_000))), ECHOES)
        check_law(cases, lambda case: self.check_echo(*case))

    def check_echo(self, case: tuple[int, Answer], echo: str) -> None:
        seed, answer = case
        rng, response = random.Random(seed), Response(answer, ASKED, PrefixCache(), "0", 1)
        reply, writing = Reply(), writer(**SEALED)
        written = writing.begin()
        for batch in read(rng, response):
            for delta in batch:
                if isinstance(delta, Delta):
                    reply.add(delta)
            written += writing.write(batch)
        output = check_stream(events(written + writing.end()))["output"]
        original = [dict(item) for item in json.loads(response.body())["output"]]
        self.check(reply.message(), ECHOES[echo](output), original)

    def test_a_damaged_stream_of_searches_is_written_as_a_sound_one(self) -> None:
        check_law(map(some_case, range(width(60, 2_000, 20_000))), self.check_damaged)

    def check_damaged(self, case: tuple[int, Answer]) -> None:
        seed, answer = case
        rng, writing, reply, reader = random.Random(seed), writer(), Reply(), ResponseReader()
        response = Response(answer, ASKED, PrefixCache(), "0", 1)
        written, failure = writing.begin(), None
        for event in damaged(rng, list(response.events())):
            found = reader.read(event)
            for delta in found.batch:
                if isinstance(delta, Delta):
                    reply.add(delta)
            written += writing.write(found.batch)
            if found.is_done or found.problem:
                failure = found.problem
                break
        is_whole = failure is None and reply.is_finished
        written += writing.end() if is_whole else writing.fail(failure or UpstreamFailed("It broke off."))
        output = check_stream(events(written))["output"]
        # Whatever it is, it can be sent back.
        history = input_items.read([question("q"), *output, question("n")], keep_server_items=True)
        payload(ChatRequest("m", "deepseek-flash", history.messages))

    def check(self, answer: Message, echo: list[Json], original: list[Json]) -> None:
        opener = Opener(Sealer(b"secret", b"caller"), 1_000_000)
        items = fields.unseal([question("q"), *echo, question("n")], opener)
        history = input_items.read(items, keep_server_items=True).messages
        self.assertEqual(["user", "assistant", "user"], [message.role for message in history])
        self.assertEqual(digest_message(answer).digest, digest_message(history[1]).digest)
        # What `restore` does once the turn is found.
        restored = history[1]._replace(reasoning=answer.reasoning)
        request = ChatRequest("m", "deepseek-flash", (history[0], restored, history[2]))
        keys = History(CALLER, history[:1]).answer_keys(answer)
        stored = {key: [answer.server_items or ""] for key in server_turns.record_keys(CALLER, answer, keys)}
        prepared = PreparedRequest(request, History(CALLER, request.messages), ())
        completed = server_turns.complete(
            prepared, CALLER, lambda keys: {key: stored[key] for key in keys if key in stored}
        )
        self.assertEqual(
            list(map(comparable, original)), list(map(comparable, payload(completed.request)["input"][1:-1]))
        )


ODD: tuple[Any, ...] = (None, "", 7, [], {}, [None], {"type": "search"}, "web_search_call", "failed", "ws_1")


def damaged(rng: random.Random, stream: list[bytes]) -> Iterator[bytes]:
    """The events of a stream, some of which are missing, doubled, swapped or odd."""
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(stream))
        match rng.randrange(4):
            case 0:
                stream = [*stream[:at], *stream[at + 1 :]] or stream
            case 1:
                stream = [*stream[:at], stream[at], *stream[at:]]
            case 2:
                other = rng.randrange(len(stream))
                stream[at], stream[other] = stream[other], stream[at]
            case _:
                stream[at] = odd(rng, stream[at])
    yield from stream


def odd(rng: random.Random, event: bytes) -> bytes:
    value = json.loads(event.partition(b"data: ")[2])
    inside = value["item"] if isinstance(value.get("item"), dict) and rng.random() < 0.6 else value
    inside[rng.choice(list(inside))] = rng.choice(ODD)
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def comparable(item: Json) -> Any:
    """An item of an answer, or of a request, without what only one of them has."""
    if item["type"] == "reasoning":
        return "reasoning", item["content"][0]["text"]
    if item["type"] == "message":
        return "text", item["content"][0]["text"]
    if item["type"] == "function_call":
        return without(item, "id", "status")
    # DeepSeek made up these ids for the test; the second writing of the answer has others.
    return item
