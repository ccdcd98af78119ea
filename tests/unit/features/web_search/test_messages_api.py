import json
import random
import unittest
from collections.abc import Iterable
from time import monotonic
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta, Heartbeat, Message, Reply, ServerPiece, pack_items
from deepseek_cursor_proxy.deepseek.api import CHAT
from deepseek_cursor_proxy.deepseek.chat_stream import ParsedEvents
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.features.encryption import Sealer
from deepseek_cursor_proxy.features.messages.request import MessageRequest
from deepseek_cursor_proxy.features.messages.writer import MessageHead, MessageWriter
from deepseek_cursor_proxy.features.web_search.messages_api import MESSAGES, MessageStreamReader, payload, usage
from deepseek_cursor_proxy.reasoning.identity import is_unique_id
from tests.fake_deepseek import Answer, Call, Citation, Search
from tests.fake_deepseek.completion import PrefixCache
from tests.fake_deepseek.messages_writer import MessageAnswer
from tests.support.fuzzing import cases, mutated_value
from tests.support.histories import TOOLS, assistant, result, system, user
from tests.support.messages_client import events as client_events
from tests.support.width import width
from tests.unit.deepseek.test_api import upstream_view
from tests.unit.features.web_search.test_responses_api import history

USE = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def request(*messages: Message, **fields: Any) -> ChatRequest:
    return ChatRequest("m", fields.pop("model", "deepseek-flash"), messages, **fields)


def turn(*items: Any, text: str = "", reasoning: str | None = None, calls: Any = ()) -> Message:
    return assistant(text, *calls, reasoning=reasoning)._replace(server_items=pack_items("messages", items))


def sent_blocks(message: Message, *later: Message, **fields: Any) -> Any:
    return payload(request(user("q"), message, *(later or (user("go on"),)), **fields))["messages"][1]["content"]


def thinking(length: int) -> dict[str, Any]:
    return {"type": "thinking", "length": length}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


class TestTurns(unittest.TestCase):
    def test_without_thinking_no_thought_goes_back(self) -> None:
        items = (thinking(3), USE, FOUND, text("Hi."))
        self.assertEqual(
            [USE, FOUND, text("Hi.")], sent_blocks(turn(*items, text="Hi.", reasoning="abc"), thinking=False)
        )

    def test_what_is_not_in_the_content_is_no_part_of_the_text(self) -> None:
        items = (text("[notice] "), USE, FOUND, text("no"), text("te Hi."))
        self.assertEqual([USE, FOUND, text("Hi.")], sent_blocks(turn(*items, text="Hi.")))
        self.assertEqual([USE, FOUND, text("Other.")], sent_blocks(turn(USE, FOUND, text("Other."), text="Hi.")))

    def test_calls_are_where_they_were(self) -> None:
        calls = (("a", "read_file", '{"x":1}'), ("b", "read_file", ""), ("c", "read_file", "[1"))
        blocks = sent_blocks(
            turn({"type": "tool_use"}, USE, FOUND, calls=calls), *(result(call[0], "42") for call in calls)
        )
        kinds = ["tool_use", "server_tool_use", "web_search_tool_result", "tool_use", "tool_use"]
        self.assertEqual(kinds, [block["type"] for block in blocks])
        inputs = [block["input"] for block in blocks if block["type"] == "tool_use"]
        self.assertEqual([{"x": 1}, {}, {"arguments": "[1"}], inputs)

    def test_a_search_that_broke_off_goes_back_only_at_the_end(self) -> None:
        broken = turn(USE, text("Hi."), text="Hi.")
        self.assertEqual([text("Hi.")], sent_blocks(broken))
        self.assertEqual([USE, text("Hi.")], payload(request(user("q"), broken))["messages"][1]["content"])
        self.assertEqual([text(" ")], sent_blocks(turn(USE)))

    def test_a_result_without_its_search_is_text(self) -> None:
        (lone,) = sent_blocks(turn(FOUND))
        self.assertEqual(("text", True), (lone["type"], "web_search_tool_result" in lone["text"]))
        self.assertEqual(
            ["text", "server_tool_use"], [each["type"] for each in sent_blocks(turn(FOUND, USE, FOUND))][:2]
        )

    def test_a_turn_that_was_paused_is_one_with_what_follows(self) -> None:
        first, second = turn(thinking(2), USE, reasoning="ab"), turn(FOUND, text("Hi."), text="Hi.", reasoning=FILLER)
        self.assertEqual([thought("ab"), USE, FOUND, text("Hi.")], sent_blocks(first, second, user("go on")))


class TestRequests(unittest.TestCase):
    def test_fields_have_their_names_in_messages(self) -> None:
        params = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "user_id": "me", "stop": "x", "seed": 1}
        body = payload(request(system("s"), user("u"), tools=tuple(TOOLS), stream=True, effort="max", params=params))
        schema = {"type": "object", "properties": {}}
        self.assertEqual(
            {
                "model": "deepseek-flash", "max_tokens": 5, "system": "s",
                "messages": [{"role": "user", "content": [text("u")]}], "thinking": {"type": "enabled"},
                "output_config": {"effort": "max"}, "tools": [{"name": "read_file", "input_schema": schema}],
                "stream": True, "temperature": 0.5, "top_p": 0.9, "stop_sequences": ["x"],
                "metadata": {"user_id": "me"},
            },
            body,
        )  # fmt: skip

    def test_there_is_always_a_limit(self) -> None:
        for fields, limit in (({}, 65_536), ({"effort": "max"}, 131_072), ({"thinking": False}, 8192)):
            self.assertEqual(limit, payload(request(user("u"), **fields))["max_tokens"])

    def test_choices_have_their_names_in_messages(self) -> None:
        named = {"type": "function", "function": {"name": "read_file"}}
        for choice, expected in (
            ("auto", {"type": "auto"}), ("none", {"type": "none"}), ("required", {"type": "any"}),
            (named, {"type": "tool", "name": "read_file"}),
        ):  # fmt: skip
            body = payload(request(user("u"), tools=tuple(TOOLS), tool_choice=choice, thinking=False))
            self.assertEqual(expected, body["tool_choice"])

    def test_a_search_is_forced_by_its_name_or_its_type(self) -> None:
        named = {"type": "tool", "name": "web_search"}
        bare = {"type": "web_search_20250305"}
        for choice, tool, expected in (
            ({**named, "disable_parallel_tool_use": True}, SEARCH, named),
            (bare, SEARCH, named),
            (bare, bare, {"type": "any"}),
        ):
            body = payload(request(user("u"), server_tools=(tool,), server_choice=choice, thinking=False))
            self.assertEqual((expected, [tool]), (body["tool_choice"], body["tools"]))

    def test_a_schema_follows_the_system_prompt(self) -> None:
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
        body = payload(request(system("Be brief."), user("u"), params={"response_format": form}))
        self.assertRegex(body["system"], r'(?s)^Be brief\.\n\nAnswer with one JSON object.*"type":"object"')

    def test_pictures_have_a_source_of_their_kind(self) -> None:
        url = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
        file = {"type": "file", "file": {"file_id": "f"}}
        sources = [each["source"] for each in payload(request(Message("user", (url, file))))["messages"][0]["content"]]
        self.assertEqual([{"type": "url", "url": "https://a/b.png"}, {"type": "file", "file_id": "f"}], sources)

    def test_every_history_has_the_words_that_a_chat_has(self) -> None:
        for number, messages in enumerate(history(random.Random(seed)) for seed in range(60)):
            for model in ("deepseek-flash", "deepseek-v4-pro"):
                for thinking in (True, False):
                    with self.subTest(number, model=model, thinking=thinking):
                        self.check(request(*messages, model=model, thinking=thinking))

    def check(self, asked: ChatRequest) -> None:
        found, chat = upstream_view(MESSAGES, asked), upstream_view(CHAT, asked)
        self.assertEqual(chat["is refused"], found["is refused"])
        said = [message for message in found["messages"] if message["role"] == "assistant"]
        turns = [message for message in asked.messages if message.role == "assistant"]
        self.assertEqual([each.content for each in turns], [each["content"].strip() for each in said])
        self.assertEqual(
            [(each.reasoning or None) if asked.thinking else None for each in turns],
            [each.get("reasoning_content") for each in said],
        )
        calls = [call["id"] for each in said for call in each.get("tool_calls", ())]
        self.assertEqual([call.id for each in turns for call in each.tool_calls], calls)
        for role in ("tool", "user", "system"):
            words = [[each["content"] for each in view["messages"] if each["role"] == role] for view in (found, chat)]
            self.assertEqual(*[[each or " " for each in said] for said in words])


SEALER = Sealer(b"secret", b"caller")

REQUEST = {
    "model": "deepseek-flash",
    "messages": [{"role": "user", "content": "hi"}],
    "server_tools": [{"type": "web_search_20250305", "name": "web_search"}],
}
CALLS = (Call("call_a", "look", '{"at":"the \U0001f600"}'), Call("call_b", "look", "{}"))
SEARCHES = (Search(("one",), reasoning="Look. "), Search(("two",), text="Again.", status="failed"))
CITATIONS = (Citation("https://a", "A", 0, 1),)
ANSWERS = (
    Answer("Let me think \U0001f600.", 'Hello, "you".\n', piece=3),
    Answer("I need a tool.", "Looking.", CALLS, piece=2),
    Answer("So.", "Found it.", CALLS, searches=SEARCHES, citations=CITATIONS, piece=1),
    Answer(content="Cut sho", finish_reason="length"),
    Answer(content="Wait", finish_reason="pause_turn"),
)


def message(answer: Answer) -> MessageAnswer:
    return MessageAnswer(answer, REQUEST, PrefixCache(), "0", 1)


def event(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def read_pieces(pieces: Iterable[bytes]) -> tuple[list[Delta], ParsedEvents]:
    reader, deltas, events = MessageStreamReader(), list[Delta](), ParsedEvents([])
    for piece in pieces:
        events = reader.read(piece)
        deltas += [item for item in events.batch if isinstance(item, Delta)]
        if events.is_done or events.problem:
            break
    return deltas, events


def read(*chunks: Any) -> list[Delta]:
    return read_pieces(map(event, chunks))[0]


def begin(block: Any, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": block, **more}


def add(delta: Any, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": delta, **more}


END = {"type": "content_block_stop", "index": 0}


def add_up(deltas: Iterable[Delta]) -> tuple[Any, ...]:
    reply = Reply()
    for delta in deltas:
        reply.add(delta)
    return reply.message(), reply.finish_reason, reply.usage


class TestSplits(unittest.TestCase):
    def test_a_call_without_an_id_gets_one(self) -> None:
        first, second = (read(begin({"type": "tool_use", "name": "look"}))[0].calls[0] for _ in range(2))
        self.assertTrue(is_unique_id(first.id) and first.id != second.id)

    def test_a_stream_of_blocks_in_pieces_of_any_size_is_read_alike(self) -> None:
        for answer in ANSWERS:
            data = b"".join(message(answer).events())
            expected, _ = read_pieces([data])
            rng = random.Random(0)
            cuts = [sorted(rng.sample(range(len(data)), 2)) for _ in range(width(30, 200))]
            pieces = [[data[:a], data[a:b], data[b:]] for a, b in cuts]
            for size in (1, 7, 100):
                pieces.append([data[at : at + size] for at in range(0, len(data), size)])
            for split in pieces:
                deltas, events = read_pieces(split)
                self.assertEqual((expected, True, None), (deltas, events.is_done, events.problem))

    def test_a_search_is_known_before_it_is_whole(self) -> None:
        use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
        pieces = [add({"type": "input_json_delta", "partial_json": text}) for text in ('{"que', 'ry":"q"}')]
        first, last = [delta.server.pieces[0] for delta in read(begin(use), *pieces, END) if delta.server is not None]
        self.assertEqual(ServerPiece(0, use, "in_progress"), first)
        self.assertEqual(ServerPiece(0, {**use, "input": {"query": "q"}}), last)


class TestOddities(unittest.TestCase):
    def test_a_call_without_its_input_in_pieces_has_that_of_its_beginning(self) -> None:
        use = {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "é"}}
        self.assertEqual('{"at":"é"}', add_up(read(begin(use), END))[0].tool_calls[0].arguments)

    def test_blocks_whose_end_is_not_told_end_with_the_next_one_or_the_message(self) -> None:
        use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
        found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
        call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
        starts = [begin(block, index=at) for at, block in enumerate((use, found, {"type": "text", "text": "T"}, call))]
        last = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
        deltas = read(*starts, last)
        self.assertEqual(
            [use, use, found], [piece.item for each in deltas if each.server for piece in each.server.pieces]
        )
        self.assertEqual('{"a":1}', "".join(piece.arguments for each in deltas for piece in each.calls))
        self.assertEqual("T", deltas[3].text)

    def test_a_second_text_begins_a_block_and_the_first_does_not(self) -> None:
        text = begin({"type": "text", "text": "Hi."})
        found = [delta.server.begins_text if delta.server else delta.text for delta in read(text, END, text, END)]
        self.assertEqual(["Hi.", True, "Hi."], found)

    def test_mutated_events_are_deltas_that_can_be_written_or_a_failure(self) -> None:
        chunks = [[json.loads(each.partition(b"data: ")[2]) for each in message(one).events()] for one in ANSWERS]
        for name, rng in cases(500):
            answer = rng.choice(chunks)
            changed = [mutated_value(rng, answer) if rng.random() < 0.1 else chunk for chunk in answer]
            with self.subTest(name):
                deltas, _ = read_pieces(map(event, changed))
                add_up(deltas)
                request = MessageRequest(ChatRequest("m", "m", ()))
                writing = MessageWriter(MessageHead("msg"), request, SEALER, monotonic, 300)
                written = client_events(writing.write([*deltas]) + writing.fail(UpstreamFailed("broke")))
                self.assertEqual("error", written.pop()["type"])
                kinds = [each["type"] for each in written if each["type"] != "content_block_delta"]
                self.assertEqual(["content_block_start", "content_block_stop"] * (len(kinds) // 2), kinds)


class TestEnds(unittest.TestCase):
    def test_the_end_has_its_name_in_chat_completions(self) -> None:
        for reason, finish in {
            "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length",
            "model_context_window_exceeded": "length", "refusal": "content_filter", "pause_turn": "pause_turn",
            "tomorrow": "aborted",
        }.items():  # fmt: skip
            (delta,) = read({"type": "message_delta", "delta": {"stop_reason": reason}})
            self.assertEqual(finish, delta.finish_reason)

    def test_a_stop_sequence_is_named(self) -> None:
        (delta,) = read({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}})
        self.assertEqual({"choices": [{"stop_reason": "END"}]}, delta.chunk)

    def test_errors_are_failures(self) -> None:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
        for body in (error, {"error": {"message": "busy"}}, {"error": "busy"}):
            self.assertIn("busy", str(read_pieces([event(body)])[1].problem), body)

    def test_a_ping_is_a_sign_of_life_but_not_that_of_the_beginning(self) -> None:
        reader, ping = MessageStreamReader(), event({"type": "ping"})
        for expected in ([], [Heartbeat("ping")], [Heartbeat("ping")]):
            events = reader.read(ping)
            self.assertEqual((expected, False), (events.batch, events.is_progress))

    def test_usage_has_its_names_in_chat_completions(self) -> None:
        found = {
            "input_tokens": 3, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 10, "output_tokens": 4,
            "server_tool_use": {"web_search_requests": 2, "odd": None},
        }  # fmt: skip
        counted = usage(found)
        assert counted is not None
        self.assertEqual((15, 4, 19), tuple(counted[f"{name}_tokens"] for name in ("prompt", "completion", "total")))
        self.assertEqual({"cached_tokens": 10}, counted["prompt_tokens_details"])
        self.assertEqual({"web_search_requests": 2}, counted["server_tool_use"])
        self.assertNotIn("server_tool_use", usage({"input_tokens": 1}) or {})
        self.assertIsNone(usage(None))

    def test_searches_that_deepseek_does_not_count_are_counted(self) -> None:
        found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
        error = {**found, "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}}
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}
        blocks = [found, found, error]
        streamed = read(*(chunk for block in blocks for chunk in (begin(block), END)), end)
        self.assertEqual({"web_search_requests": 2}, (streamed[-1].usage or {})["server_tool_use"])
