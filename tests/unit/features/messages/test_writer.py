import json
import random
import unittest
from collections.abc import Iterator
from time import monotonic
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, ChatRequest, Delta, Heartbeat, ServerDelta, ServerPiece
from deepseek_cursor_proxy.deepseek import chat_stream
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.features.encryption import Opener, Sealer
from deepseek_cursor_proxy.features.messages.request import MessageRequest
from deepseek_cursor_proxy.features.messages.writer import PING, MessageHead, MessageWriter
from tests.support.generated_answers import FUNCTION, REQUEST, answer, batches, message, parts, stream, words
from tests.support.messages_client import Json, add_up_events, events, kinds
from tests.support.width import width
from tests.unit.features.responses.test_writer import completion

SEALER = Sealer(b"secret", b"caller")
BROKE = UpstreamFailed("broke")
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "é"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}


def opened(signature: str) -> str | None:
    return Opener(SEALER, 1_000_000).open(signature)


def writer(request: ChatRequest = REQUEST, **options: Any) -> MessageWriter:
    return MessageWriter(MessageHead("msg_1", "req_1", 3), MessageRequest(request, **options), SEALER, monotonic, 300)


def written(writing: MessageWriter, batch: Any) -> list[Json]:
    return events(writing.begin() + writing.write(batch) + writing.end())


def added_up(*deltas: Delta, **options: Any) -> Json:
    return add_up_events(written(writer(**options), deltas))


def call(index: int, call_id: str = "", arguments: str = "", **fields: Any) -> Delta:
    """A piece of a call, with its name where the id is new."""
    return Delta(calls=(CallPiece(index, call_id, FUNCTION if call_id else "", arguments),), **fields)


def interleaved(rng: random.Random, calls: int) -> list[Delta]:
    """Parallel calls in pieces that come in any order, with text between them."""
    waiting: dict[int, Iterator[str]] = {}
    deltas = []
    for index in range(calls):
        arguments = json.dumps({"path": words(rng, 6), "n": index, "inner": [{}, {"a": "}"}]})
        waiting[index] = parts(rng, arguments)
        deltas.append(call(index, f"call_{index}"))
    while waiting:
        index = rng.choice(list(waiting))
        if (part := next(waiting[index], None)) is None:
            del waiting[index]
        else:
            deltas.append(call(index, arguments=part))
        if rng.random() < 0.2:
            deltas.append(rng.choice((Delta(text=words(rng, 3)), Delta(reasoning=words(rng, 3)))))
    return [*deltas, Delta(finish_reason="tool_calls")]


class TestAnthropicStream(unittest.TestCase):
    def test_anthropic_events_add_up_to_the_message_however_they_are_cut(self) -> None:
        for seed in range(width(50, 200)):
            rng = random.Random(seed)
            omits = rng.random() < 0.3
            writing = writer(omits_thinking=omits)
            found = list(batches(rng, stream(rng, answer(rng))))
            data = writing.begin() + b"".join(map(writing.write, found)) + writing.end()
            with self.subTest(seed=seed):
                reply = add_up_events(events(data))
                self.assertEqual(writing.message(), reply)
                self.assertEqual((5, 7), (reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]))
                self.assert_says(reply, found, omits=omits)

    def assert_says(self, reply: Json, found: Any, *, omits: bool = False) -> None:
        """The message has all of DeepSeek's answer and nothing else."""
        turn = message(found)
        thoughts = [block for block in reply["content"] if block["type"] == "thinking"]
        self.assertEqual(turn.reasoning or "", "".join(opened(each["signature"]) or "" for each in thoughts))
        thinking = "".join(each["thinking"] for each in thoughts)
        self.assertEqual("" if omits else turn.reasoning or "", thinking)
        self.assertEqual(turn.content, "".join(each["text"] for each in reply["content"] if each["type"] == "text"))
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        expected = [(call.id, call.name, json.loads(call.arguments)) for call in turn.tool_calls]
        self.assertEqual(expected, [(each["id"], each["name"], each["input"]) for each in calls])

    def test_a_plain_anthropic_message_equals_the_streamed_one(self) -> None:
        for seed in range(100):
            rng = random.Random(seed)
            turn = answer(rng, is_orderly=True)
            streamed, whole = writer(), writer()
            for batch in batches(rng, stream(rng, turn)):
                streamed.write(batch)
            whole.write(list(chat_stream.read_completion(completion(turn))))
            self.assertEqual(streamed.message(), whole.message(), seed)

    def test_a_broken_anthropic_stream_closes_every_block(self) -> None:
        for seed in range(width(50, 200)):
            rng = random.Random(seed)
            data = stream(rng, answer(rng))
            writing = writer()
            sent = writing.begin() + b"".join(map(writing.write, batches(rng, data[: rng.randrange(len(data))])))
            sent += writing.fail(BROKE)
            with self.subTest(seed=seed):
                first, *found, last = events(sent)
                self.assertEqual(("message_start", "error"), (first["type"], last["type"]))
                opened = [event["index"] for event in found if event["type"] == "content_block_start"]
                closed = [event["index"] for event in found if event["type"] == "content_block_stop"]
                self.assertEqual(list(range(len(opened))), opened)
                self.assertEqual(opened, closed)

    def test_interleaved_calls_become_consecutive_complete_tool_use_blocks(self) -> None:
        for seed in range(width(50, 200)):
            rng = random.Random(seed)
            deltas = interleaved(rng, rng.choice((1, 2, 3, 4)))
            writing = writer()
            with self.subTest(seed=seed):
                reply = add_up_events(written(writing, deltas))
                self.assertEqual(writing.message(), reply)
                self.assert_says(reply, [deltas])


class TestToolUseBlocks(unittest.TestCase):
    def test_a_tool_use_block_ends_when_the_next_call_begins(self) -> None:
        for first in ('{"a":1}', '{"a":"' + "x" * 100_000 + '"}', '{"a":1} \n'):
            writing = writer()
            writing.write([call(0, "a", first)])
            found = [event["type"] for event in events(writing.write([call(1, "b", '{"b')]))]
            self.assertEqual(["content_block_stop", "content_block_start", "content_block_delta"], found)

    def test_text_in_the_middle_of_a_call_waits_for_its_end(self) -> None:
        texts = (Delta(text=text) for text in ("mean", "while"))
        reply = added_up(call(0, "a", '{"x":'), *texts, call(0, arguments="1}"), Delta(text="!"))
        self.assertEqual(["tool_use", "text"], kinds(reply))
        self.assertEqual(({"x": 1}, "meanwhile!"), (reply["content"][0]["input"], reply["content"][1]["text"]))

    def test_a_tool_use_block_without_arguments_has_an_empty_input(self) -> None:
        for arguments in ("", "{}", " "):
            writing = writer()
            writing.write([call(0, "a", arguments, finish_reason="tool_calls")])
            self.assertEqual([{}], [block["input"] for block in writing.message()["content"]])


class TestThinkingBlocks(unittest.TestCase):
    def test_the_signature_of_a_thinking_block_holds_its_text(self) -> None:
        for omits in (True, False):
            reply = added_up(Delta(reasoning="hm"), Delta(text="x"), omits_thinking=omits)
            self.assertEqual("hm", opened(reply["content"][0]["signature"]))
            self.assertEqual("" if omits else "hm", reply["content"][0]["thinking"])


class TestServerBlocks(unittest.TestCase):
    @staticmethod
    def piece(key: int, item: Json, step: str = "completed") -> Delta:
        return Delta(server=ServerDelta((ServerPiece(key, item, step),)))

    @staticmethod
    def cite(*urls: str) -> Delta:
        return Delta(server=ServerDelta(citations=tuple({"url": url} for url in urls)))

    def test_blocks_are_written_as_they_came(self) -> None:
        begun = {**SEARCH, "input": {}}
        for beginnings in ((), (self.piece(0, begun, "in_progress"), self.piece(0, begun, "searching"))):
            deltas = (*beginnings, self.piece(0, SEARCH), self.piece(1, FOUND), Delta(text="Hi."))
            writing = writer()
            reply = add_up_events(written(writing, [*deltas, Delta(finish_reason="stop")]))
            self.assertEqual([SEARCH, FOUND, {"type": "text", "text": "Hi."}], reply["content"])
            self.assertEqual(writing.message(), reply)

    def test_a_search_begins_before_its_input_is_known(self) -> None:
        (start,) = events(writer().write([self.piece(0, {**SEARCH, "input": {}}, "in_progress")]))
        self.assertEqual(("content_block_start", {}), (start["type"], start["content_block"]["input"]))

    def test_a_text_has_its_own_sources(self) -> None:
        new = Delta(server=ServerDelta(begins_text=True))
        deltas = (Delta(text="a"), self.cite("1", "2"), new, self.cite("3"), Delta(text="b"), Delta(text="c"), new)
        writing = writer()
        reply = add_up_events(written(writing, [*deltas, Delta(finish_reason="stop")]))
        expected = [("a", [{"url": "1"}, {"url": "2"}]), ("bc", [{"url": "3"}])]
        self.assertEqual(expected, [(each["text"], each["citations"]) for each in reply["content"]])
        self.assertEqual(writing.message(), reply)

    def test_sources_without_a_text_are_no_block(self) -> None:
        self.assertEqual([], added_up(self.cite("1"), Delta(finish_reason="stop"))["content"])
        new = Delta(server=ServerDelta(begins_text=True))
        reply = added_up(self.cite("1"), new, Delta(text="x"), Delta(finish_reason="stop"))
        self.assertEqual([{"type": "text", "text": "x"}], reply["content"])

    def test_a_failure_in_the_middle_of_a_search_ends_its_block(self) -> None:
        writing = writer()
        writing.write([self.piece(0, {**SEARCH, "input": {}}, "in_progress")])
        self.assertEqual(["content_block_stop", "error"], [each["type"] for each in events(writing.fail(BROKE))])

    def test_a_paused_answer_says_so(self) -> None:
        self.assertEqual("pause_turn", added_up(Delta(text="x"), Delta(finish_reason="pause_turn"))["stop_reason"])

    def test_searches_are_counted_where_they_may_be_made(self) -> None:
        may_search = REQUEST._replace(server_tools=({"type": "web_search_20250305"},))
        counted = {"prompt_tokens": 1, "server_tool_use": {"web_search_requests": 2}}
        end = Delta(finish_reason="stop", usage=counted)
        for request, found in ((may_search, [0, 2]), (REQUEST, [None, 2])):
            start, *_, delta, _ = written(writer(request), [Delta(text="x"), end])
            runs = [each["usage"].get("server_tool_use") for each in (start["message"], delta)]
            self.assertEqual(found, [each and each["web_search_requests"] for each in runs])
        self.assertNotIn("server_tool_use", added_up(Delta(text="x", finish_reason="stop"))["usage"])


class TestOtherEvents(unittest.TestCase):
    def test_upstream_silence_is_a_ping_and_a_comment_is_no_event(self) -> None:
        writing = writer()
        self.assertEqual(PING, writing.write([Heartbeat()]))
        self.assertEqual(b"", writing.write([Heartbeat("keep-alive"), Heartbeat("keep-alive")]))
        self.assertEqual([{"type": "ping"}], events(PING))

    def test_a_client_that_gets_nothing_for_a_while_gets_a_ping(self) -> None:
        now = [0.0]
        writing = MessageWriter(MessageHead("msg_1"), MessageRequest(REQUEST), SEALER, lambda: now[0], 10.0)
        nothing = [Heartbeat("keep-alive")]
        sent = []
        for now[0], batch in enumerate([nothing] * 12 + [[Delta(text="x")]] + [nothing] * 22):
            sent.append(writing.write(batch) == PING)
        # After ten seconds, and ten seconds after the text and each ping.
        self.assertEqual([10, 22, 32], [at for at, is_ping in enumerate(sent) if is_ping])
