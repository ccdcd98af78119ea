import json
import random
import unittest
from time import monotonic
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.errors import (
    BadRequest,
    Overloaded,
    ProxyError,
    ProxyStopping,
    TooLarge,
    Unauthorized,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
)
from deepseek_cursor_proxy.features.encryption import Sealer
from deepseek_cursor_proxy.features.messages import errors, request, writer
from deepseek_cursor_proxy.features.messages.request import MessageRequest
from deepseek_cursor_proxy.features.messages.writer import MessageHead, MessageWriter
from tests.support.bad_requests import assert_named
from tests.support.generated_answers import answer, batches, message, stream
from tests.support.messages_client import TOOLS, Json, result, user
from tests.support.width import width

CONFIG = ProxyConfig()
SEALER = Sealer(b"secret", b"caller")


def parse(**body: Any) -> MessageRequest:
    return request.parse({"max_tokens": 2000, "messages": [user("q")], **body}, CONFIG, SEALER)


def read(*messages: Any, **body: Any) -> tuple[Message, ...]:
    return parse(messages=list(messages), **body).request.messages


def blocks_of(turn: Any) -> list[Json]:
    writing = MessageWriter(MessageHead("msg_1"), parse(thinking={"type": "adaptive"}), SEALER, monotonic, 300)
    for batch in turn:
        writing.write(batch)
    return list(writing.message()["content"])


class TestRoundTrip(unittest.TestCase):
    def test_a_written_anthropic_message_reads_back_as_the_same_turn(self) -> None:
        for seed in range(width(50, 200)):
            rng = random.Random(seed)
            found = list(batches(rng, stream(rng, answer(rng))))
            turn, blocks = message(found), blocks_of(found)
            with self.subTest(seed=seed):
                for omitted in (False, True):
                    echo = [{**block, "thinking": ""} if omitted and "thinking" in block else block for block in blocks]
                    read_back = read(user("q"), {"role": "assistant", "content": echo}, user("go on"))[1]
                    self.assertEqual(turn.reasoning or None, read_back.reasoning)
                    self.assertEqual(turn.content, read_back.content)
                    self.assertEqual(calls_of(turn), calls_of(read_back))


def calls_of(turn: Message) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, json.loads(call.arguments)) for call in turn.tool_calls]


class TestThinking(unittest.TestCase):
    def thinking(self, *blocks: Json) -> str | None:
        return read(user("q"), {"role": "assistant", "content": [*blocks, {"type": "text", "text": "x"}]})[1].reasoning

    def block(self, thought: str, text: str | None = None, **more: Any) -> Json:
        signature = SEALER.seal(thought)
        return {"type": "thinking", "thinking": thought if text is None else text, "signature": signature, **more}

    def test_our_signature_wins_over_the_text_of_a_thinking_block(self) -> None:
        blocks = [self.block("hm", text) for text in (None, "", "something else")]
        for block in (*blocks, {"type": "thinking", "signature": SEALER.seal("hm")}):
            self.assertEqual("hm", self.thinking(block))

    def test_a_foreign_signature_is_ignored(self) -> None:
        other = Sealer(b"secret", b"somebody else").seal("a thought of others")
        for signature in (other, "", "x", "dcp1.", "dcp1.x", None, 7):
            self.assertIsNone(self.thinking(self.block("", signature=signature)))
            self.assertEqual("hm", self.thinking(self.block("hm", signature=signature)))

    def test_signatures_are_read_in_assistant_messages_only(self) -> None:
        self.assertNotIn("hm", str(read(user(self.block("hm", "")))[0]))


class TestFields(unittest.TestCase):
    def test_a_bad_anthropic_field_is_a_400_that_names_it(self) -> None:
        use: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}

        def block(value: Any) -> Json:
            return {"messages": [user(value)]}

        def turn(value: Any) -> Json:
            return {"messages": [{"role": "assistant", "content": [value]}]}

        one_value = {"model": 7, "stream": "yes", "temperature": 3, "top_p": -1, "metadata": "me", "thinking": "on"}
        one_value |= {"output_config": [], "tools": {}, "system": 7}
        chosen = [{"tools": TOOLS, "tool_choice": {"type": "tool", "name": "nobody"}}]
        rows = (
            *((name, {name: value}) for name, value in one_value.items()),
            ("messages", *({"messages": each} for each in (None, "q", {}, []))),
            ("messages[0]", {"messages": [7]}, {"messages": [None]}),
            ("messages[0].role", {"messages": [{"content": "q"}]}, {"messages": [{"role": 7, "content": "q"}]}),
            ("messages[0].content", {"messages": [{"role": "user", "content": 7}]}),
            ("messages[0].content[0]", block(7)),
            ("messages[0].content[0].text", block({"type": "text", "text": 7})),
            ("messages[0].content[0].source", block({"type": "image"}), block({"type": "image", "source": "x"})),
            ("messages[0].content[0].content", block(result("a", 7))),
            ("messages[0].content[0].is_error", block(result("a", is_error="yes"))),
            ("messages[0].content[0].tool_use_id", block({**result("a"), "tool_use_id": 7})),
            ("messages[0].content[0].id", turn({**use, "id": 7})),
            ("messages[0].content[0].name", turn({**use, "name": {}})),
            ("max_tokens", *({"max_tokens": each} for each in (None, 0, "many", True))),
            ("system[0]", {"system": [7]}),
            ("stop_sequences", {"stop_sequences": [7]}, {"stop_sequences": {}}),
            ("metadata.user_id", {"metadata": {"user_id": 7}}),
            ("thinking.type", {"thinking": {"type": "sometimes"}}, {"thinking": {"type": 7}}),
            ("output_config.effort", {"output_config": {"effort": 7}}),
            ("tools[0]", {"tools": [7]}),
            ("tools[0].name", {"tools": [{"input_schema": {}}]}),
            ("tools[0].input_schema", {"tools": [{"name": "f", "input_schema": 7}]}),
            ("tool_choice", {"tools": TOOLS, "tool_choice": "sometimes"}, *chosen),
            ("tool_choice.name", {"tools": TOOLS, "tool_choice": {"type": "tool"}}),
            ("tool_choice.type", {"tools": TOOLS, "tool_choice": {}}),
        )
        assert_named(self, lambda body: parse(**body), "", *rows)

    def test_unusual_but_valid_anthropic_bodies_are_accepted(self) -> None:
        for body in (
            *({name: []} for name in ("stop_sequences", "system")),
            *({name: {}} for name in ("thinking", "metadata")),
            *({name: None} for name in ("stop_sequences", "thinking")),
            {"thinking": {"type": "enabled", "budget_tokens": 5, "display": "of tomorrow"}},
            {"output_config": {"effort": "of tomorrow", "format": {"type": "json_schema"}}},
            {"metadata": {"user_id": "ä" * 600}}, {"max_tokens": 10**9},
            {"tools": [], "tool_choice": {"type": "any"}}, {"model": ""},
            {"messages": [{"role": "a role of tomorrow", "content": "q"}]},
            {"messages": [{"role": "user", "content": []}]}, {"messages": [{"role": "user"}]},
            {"messages": [user({"type": "a block of tomorrow", "x": [1]})]},
        ):  # fmt: skip
            with self.subTest(body):
                chat_api.payload(parse(**body).request)

    def test_max_tokens_is_required_for_messages_but_not_for_counting(self) -> None:
        request.parse({"messages": [user("q")]}, CONFIG, SEALER, needs_limit=False)

    def test_anthropic_user_ids_become_distinct_deepseek_user_ids(self) -> None:
        users = [json.dumps({"device_id": device, "session_id": "s"}) for device in ("d1", "d2")]
        ids = [parse(metadata={"user_id": each}).request.params["user_id"] for each in users]
        self.assertEqual(2, len(set(ids)))
        self.assertNotIn("user_id", parse(metadata={"user_id": "{}"}).request.params)


class TestResultOrder(unittest.TestCase):
    def test_tool_results_without_a_call_come_after_the_others(self) -> None:
        use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        found = read({"role": "assistant", "content": [use]}, user(result("x"), result("a"), result("y")))
        self.assertEqual(["a", "x", "y"], [each.tool_call_id for each in found[1:]])
        self.assertEqual(["x", "a"], [each.tool_call_id for each in read(user(result("x"), result("a")))])


class TestErrors(unittest.TestCase):
    def test_every_error_has_an_anthropic_status_and_type(self) -> None:
        cases: tuple[tuple[ProxyError, int, str], ...] = (
            (BadRequest("no"), 400, "invalid_request_error"), (Unauthorized("no"), 401, "authentication_error"),
            (TooLarge("no"), 413, "request_too_large"), (Overloaded("no"), 529, "overloaded_error"),
            (ProxyStopping(), 529, "overloaded_error"), (UpstreamFailed("no"), 500, "api_error"),
            (UpstreamFailed("no", code="insufficient_system_resource"), 529, "overloaded_error"),
            (UpstreamTimeout("no"), 500, "api_error"),
            (UpstreamRefused(418, "no", None, None), 418, "invalid_request_error"),
            (UpstreamRefused(599, "no", None, None), 500, "api_error"),
        )  # fmt: skip
        for error, status, kind in cases:
            with self.subTest(error):
                body = errors.failure(error, "req_1")
                expected = {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": "req_1"}
                self.assertEqual((status, expected), (errors.status(error), body))

    def test_an_anthropic_error_has_deepseeks_message_but_not_its_fields(self) -> None:
        body = {"error": {"message": "Its own words.", "type": "odd", "code": "odd"}, "trace": "x"}
        found = errors.failure(UpstreamRefused(400, "ours", body, None), "req_1")
        self.assertEqual({"type": "invalid_request_error", "message": "Its own words."}, found["error"])
        self.assertEqual({"type", "error", "request_id"}, set(found))


class TestUsage(unittest.TestCase):
    def test_anthropic_usage_counts_cached_and_new_tokens(self) -> None:
        for found, expected in (
            (None, (9, 0, 0)),
            ({}, (0, 0, 0)),
            ({"prompt_tokens": 10, "completion_tokens": 5}, (10, 0, 5)),
            ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}, (6, 4, 0)),
            ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, (0, 4, 0)),
            ({"prompt_tokens": None, "prompt_tokens_details": None, "completion_tokens": -1}, (0, 0, 0)),
        ):
            usage = writer.usage(found, 9)
            names = ("input_tokens", "cache_read_input_tokens", "output_tokens")
            self.assertEqual(expected, tuple(usage[name] for name in names))
            self.assertEqual(0, usage["cache_creation_input_tokens"])
