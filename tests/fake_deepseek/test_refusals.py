"""What DeepSeek takes and what it refuses, as tables: a request, and the words that it earns; "" for one that is taken.

The facts and their sources are in the modules that judge: contract, tool_rules, prompt, native, searches, web_tools,
messages_contract and dialects.
"""

import base64
import http.client
import json
import unittest
from typing import Any, ClassVar
from unittest import mock

from tests.fake_deepseek import FakeDeepSeek, Rules, contract
from tests.fake_deepseek.contract import (
    DESERIALIZE,
    EFFORT_WITHOUT_THINKING,
    FORCED_TOOL,
    MISSING_REASONING,
    ORPHAN_RESULT,
    UNANSWERED_CALLS,
)
from tests.fake_deepseek.dialects import DIALECTS
from tests.fake_deepseek.messages_contract import MISSING_THINKING
from tests.fake_deepseek.native import MISSING_REASONING_TEXT, NO_OUTPUT
from tests.fake_deepseek.prompt import MISSING_HEADER

Json = dict[str, Any]
Rows = list[tuple[Json, str]]

PRO, FLASH = "deepseek-v4-pro", "deepseek-flash"
OBJECT = {"type": "object", "properties": {}}
USER, SYSTEM = {"role": "user", "content": "Hello?"}, {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": OBJECT}}
NAMED = {"type": "function", "function": {"name": "look"}}
TEXT = {"type": "text", "text": "Hi."}
OFF = {"thinking": {"type": "disabled"}}


class FakeCase(unittest.TestCase):
    def setUp(self) -> None:
        self.use()

    def use(self, **how: Any) -> FakeDeepSeek:
        self.fake = self.enterContext(FakeDeepSeek(**how))
        self.connection = http.client.HTTPConnection(self.fake.url.removeprefix("http://"), timeout=30)
        self.addCleanup(self.connection.close)
        return self.fake

    def send(self, payload: Any, path: str = "/chat/completions", **headers: str) -> http.client.HTTPResponse:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.connection.request("POST", path, data, headers or {"Authorization": "Bearer sk-test"})
        return self.connection.getresponse()

    def ask(self, payload: Any, path: str = "/chat/completions", **headers: str) -> Any:
        return json.loads(self.send(payload, path, **headers).read())

    def assert_rows(self, rows: Rows, path: str = "/chat/completions") -> None:
        for payload, words in rows:
            with self.subTest(words or "taken", payload=str(payload)[-150:]):
                reply = self.send(payload, path)
                text = reply.read().decode()
                self.assertEqual(400 if words else 200, reply.status, text)
                self.assertIn(words, json.loads(text)["error"]["message"] if words else "")


# Chat completions …


def call(id: str = "a", **function: Any) -> Json:
    return {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}", **function}}


def calls(*ids: str, thought: str | None = "Let me look.", **more: Any) -> Json:
    return says(None, thought, **{"tool_calls": [call(id) for id in ids or ("a",)], **more})


def says(text: Any = "Hello.", thought: str | None = "I greet.", **more: Any) -> Json:
    reasoning = {} if thought is None else {"reasoning_content": thought}
    return {"role": "assistant", "content": text, **reasoning, **more}


def result(id: str = "a", **more: Any) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": "seen", **more}


def body(*messages: Any, **fields: Any) -> Json:
    return {"model": PRO, "messages": list(messages) or [USER], **fields}


def without(value: Json, *names: str) -> Json:
    return {name: each for name, each in value.items() if name not in names}


def function(**fields: Any) -> Json:
    return body(tools=[{"type": "function", "function": {"name": "f", **fields}}])


def parameters(**fields: Any) -> Json:
    return function(parameters={**OBJECT, **fields})


def pictures(*urls: str, **fields: Any) -> Json:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return body({"role": "user", "content": parts}, **fields)


def picture(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


LOOP = (USER, calls(), result())
PNG, REMOTE = picture(b"\x89PNG\r\n"), "https://example.com/a.png"
ROOT = "schema must be a JSON Schema of 'type: \"object\"', got 'type: "
REF = {"$ref": "#/$defs/a"}
RANGE = "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]"


class TestChat(FakeCase):
    def test_types(self) -> None:
        rows: list[tuple[Any, str]] = [
            ([], ""), (b"", ""), (b"{", ""), (b'{"a":NaN}', ""), (b"\xff", ""),
            (without(body(), "model"), "missing field `model`"), (body(tools={}), "tools: invalid type: map"),
            (body(model=5), "model: invalid type: integer `5`, expected a string"),
            (body(messages={}), "messages: invalid type: map, expected a sequence"),
            (body("hi"), 'messages[0]: invalid type: string "hi", expected a map'),
            (body(stream=1), "stream: invalid type: integer `1`, expected a boolean"),
            (body(max_tokens=True), "max_tokens: invalid type: boolean `true`, expected an integer"),
            (body(max_tokens=1.5), "max_tokens: invalid type: floating point `1.5`, expected an integer"),
            (body(tools=[{"type": "function", "function": {}}]), "tools[0].function: missing field `name`"),
            (body(thinking={}), "thinking: missing field `type`"), (body(temperature="1"), 'type: string "1"'),
            (body(stop=3), "stop: invalid type: integer `3`, expected a string or a sequence"),
            (body({"role": "developer", "content": "x"}), "messages[0].role: unknown variant `developer`, expected one "
             "of `system`, `user`, `assistant`, `tool`, `latest_reminder`"),
            (body(tools=[{"type": "custom"}]), "tools[0].type: unknown variant `custom`, expected `function`"),
            (body(thinking={"type": "adaptive"}), "unknown variant `adaptive`, expected `enabled` or `disabled`"),
            (body(tools=[TOOL], tool_choice="any"), "tool_choice: unknown variant `any`, expected one of"),
            (body(tools=[TOOL], tool_choice={"type": "tool"}), "tool_choice.type: unknown variant `tool`"),
            (body({"role": "user", "content": [{"type": "input_text"}]}), "messages[0].content[0].type: unknown"),
            (body({"role": "user", "content": None}), "invalid type: null, expected a string or a sequence"),
            (body({"role": "system", "content": [TEXT]}), "invalid type: sequence, expected a string"),
            (body(says([TEXT])), "messages[0].content: invalid type: sequence, expected a string or null"),
            (body(without(says(), "content")), "messages[0]: missing field `content`"),
            (body(*LOOP[:2], result(content=[TEXT])), "messages[2].content: invalid type: sequence"),
            (body(USER, says(reasoning_details=[]), USER), "unknown field `reasoning_details`"),
        ]  # fmt: skip
        self.assert_rows([(payload, DESERIALIZE) for payload, _ in rows])
        self.assert_rows([(payload, words) for payload, words in rows if words])

    def test_fields(self) -> None:
        strict = {"type": "function", "function": {"name": "look", "strict": True}}
        begun = says("Once", prefix=True)
        limits = {"max_tokens": 393216, "temperature": 2, "top_p": 1, "stop": ["x"] * 16, "user_id": "é" * 256}
        self.assert_rows([
            (body(), ""), (body(**dict.fromkeys(("tools", "stream", "stream_options", "thinking", "max_tokens"))), ""),
            (body(prompt_cache_key="x", parallel_tool_calls=True), ""), (body(**limits), ""),
            (body({"role": "latest_reminder", "content": "Mind the time."}, USER), ""),
            (body({"role": "user", "content": [TEXT]}), ""), (body(user_id="me@example.com"), ""),
            (body(stream=True, stream_options={"include_usage": True}), ""), (body(reasoning_effort="none"), ""),
            (body(tools=[TOOL], tool_choice=NAMED, **OFF), ""), (body(tools=[TOOL], tool_choice="auto"), ""),
            (body(response_format={"type": "json_object"}), ""), (body(model="deepseek-chat"), "Model Not Exist"),
            (body(max_tokens=0), RANGE), (body(max_tokens=393217), RANGE), (body(temperature=2.1), "temperature value"),
            (body(stop=["x"] * 17), "Invalid 'stop'"), (body(stop=[1]), "Invalid 'stop'"),
            (body(stream_options={"include_usage": True}), "stream_options should be set along with stream = true"),
            (body(response_format={"type": "json_schema"}), "response_format type is unavailable"),
            (body(user_id="é" * 257), "'user_id': longer than 512 bytes"), (body(messages=[]), "Empty input messages"),
            (body(reasoning_effort="high", **OFF), EFFORT_WITHOUT_THINKING),
            *((body(tools=[TOOL], tool_choice=choice), FORCED_TOOL) for choice in ("required", NAMED)),
            (body(USER, begun), "/beta"), (body(tools=[strict]), "/beta"),
        ])  # fmt: skip
        mixed = body(tools=[strict, {"type": "function", "function": {"name": "b"}}])
        beta = [(body(USER, begun), ""), (body(tools=[strict]), ""), (body(USER, begun, USER), "last message")]
        self.assert_rows([*beta, (mixed, "all of them")], "/beta/chat/completions")

    def test_functions(self) -> None:
        array, found = 'null is not of type "array"', 'null is not of type "object"'
        self.assert_rows([
            (function(name="a" * 64), ""), (parameters(), ""), (parameters(required=["a"]), ""),
            (parameters(anyOf=[{"required": ["a"]}], additionalProperties=False), ""),
            (parameters(properties={"a": {"additionalProperties": True, "default": None, "enum": [None]}}), ""),
            (function(parameters=None), f"{ROOT}null'."), (function(parameters={"oneOf": [OBJECT]}), f"{ROOT}null'."),
            (parameters(type=None), f"{ROOT}null'."), (parameters(type="string"), f'{ROOT}"string"'),
            (parameters(type=["object", "null"]), f'{ROOT}["object", "null"]'),
            (function(parameters={"type": "object"}), "missing properties"), (parameters(**REF), "unexpected $ref"),
            (parameters(required=None), array), (parameters(required=[1]), '1 is not of type "string"'),
            (parameters(required=["a", "a"]), "non-unique"), (parameters(properties=None), found),
            (parameters(properties={"a": {"anyOf": [{"required": None}]}}), array),
            (parameters(items={"type": None}), 'null is not of type "string"'), (parameters(allOf=None), array),
            (parameters(properties={"a": True}), 'true is not of type "object"'),
            (parameters(items=[False]), "false is not of type"), (parameters(additionalProperties=None), found),
            *((function(name=name), f"Invalid function name '{name[:3]}") for name in ("a.b", "", "a" * 65)),
            (body(tools=[TOOL, TOOL]), "Tool names must be unique."),
            (body(tools=[TOOL] * 128), "must be unique"), (body(tools=[TOOL] * 129), "at most 128 functions"),
            (body(USER, calls(tool_calls=[call(name="a.b")]), result()), "Invalid function name 'a.b'"),
        ])  # fmt: skip

    def test_pictures(self) -> None:
        formats = (b"\x89PNG", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF....WEBP")
        self.assert_rows([
            *((pictures(picture(data), REMOTE, model=model), "") for data in formats for model in (PRO, FLASH)),
            (pictures(picture(b"%PDF-1.7")), "Unsupported image format"),
            (pictures("data:image/png;base64,not base64"), "Unsupported image format"),
            (pictures("file:///etc/passwd"), "Invalid image URL"),
            (pictures("https://example.com/" + "a" * 8192), "Invalid image URL"),
            (pictures(*[REMOTE] * 601), "Too many images: 601"),
        ])  # fmt: skip
        with mock.patch.multiple(contract, MAX_PICTURE_BYTES=8, MAX_BYTES_OF_PICTURES=12):
            large = picture(b"\x89PNG\r\n123")
            self.assert_rows([(pictures(large), "too large"), (pictures(*[PNG] * 3), "too large")])
            self.assert_rows([(pictures(*[PNG] * 2), "")])

    def test_order_and_ids_of_calls_and_results(self) -> None:
        self.assert_rows([
            (body(SYSTEM, USER, calls("a", "b"), result("b"), result("a"), says(), USER, tools=[TOOL]), ""),
            (body(USER, calls()), UNANSWERED_CALLS),
            (body(USER, calls("a", "b"), result("a"), USER), UNANSWERED_CALLS),
            (body(USER, calls(), USER, result()), UNANSWERED_CALLS),
            (body(USER, calls("a"), calls("b"), result("a"), result("b")), UNANSWERED_CALLS),
            # It is judged before the reasoning.
            (body(USER, calls(thought=None), USER, tools=[TOOL]), UNANSWERED_CALLS),
            (body(USER, result()), ORPHAN_RESULT), (body(USER, calls(), result("b")), ORPHAN_RESULT),
            (body(*LOOP, result()), ORPHAN_RESULT), (body(*LOOP, USER, result()), ORPHAN_RESULT),
            (body(USER, calls(tool_calls=[without(call(), "id")])), "tool_calls[0]: missing field `id`"),
            (body(USER, calls(tool_calls=[call() | {"id": None}])), "tool_calls[0].id: invalid type: null"),
            (body(USER, calls(tool_calls=[call(arguments={})])), "arguments: invalid type: map"),
            *((body(USER, calls(id), result("")), "must not be empty") for id in ("", "a")),
            (body(*LOOP[:2], without(result(), "tool_call_id")), "messages[2]: missing field `tool_call_id`"),
        ])  # fmt: skip

    def test_reasoning(self) -> None:
        """A request with tools owes that of every turn; one without, that of the loop its history ends in."""
        bare, plain, tools = (USER, calls(thought=None), result()), says(thought=None), {"tools": [TOOL]}
        empty, space = (USER, calls(thought=""), result()), (USER, calls(thought=" "), result())
        self.assert_rows([
            (body(*bare, **tools), MISSING_REASONING), (body(USER, plain, USER, **tools), MISSING_REASONING),
            (body(*LOOP, plain, USER, **tools), MISSING_REASONING),
            (body(USER, plain | {"reasoning_content": None}, USER, **tools), MISSING_REASONING),
            (body(USER, plain, USER, thinking={"type": "enabled"}, **tools), MISSING_REASONING),
            (body(*bare), MISSING_REASONING), (body(*LOOP, calls("b", thought=None), result("b")), MISSING_REASONING),
            (body(*bare, USER), ""), (body(USER, plain, USER), ""), (body(USER, plain, *LOOP[1:]), ""),
            (body(*bare, **OFF, **tools), ""), (body(*bare, reasoning_effort="none", **tools), ""),
            # Only V4-Pro refuses an empty one, and only with a call.
            (body(USER, says(thought=""), USER, **tools), ""), (body(*empty, **tools), MISSING_REASONING),
            (body(*empty, model=FLASH, **tools), ""), (body(*space, **tools), ""),
        ])  # fmt: skip
        self.use(rules=Rules(refuses_empty=True))
        rows = [(body(USER, says(thought=""), USER, **tools), MISSING_REASONING), (body(*space, **tools), "")]
        self.assert_rows(rows)

    def test_a_system_message_where_the_template_of_v4_has_no_header(self) -> None:
        later, tools = {"role": "system", "content": "It is Monday."}, {"tools": [TOOL]}
        wrong = ((SYSTEM, USER, later), (USER, later, says(), USER), (*LOOP, later), (SYSTEM,), (SYSTEM, says(), USER))
        self.assert_rows([(body(*history, **tools), MISSING_HEADER) for history in wrong])
        self.assert_rows([(body(*history, model=FLASH, **tools), "") for history in wrong])
        self.assert_rows([(body(SYSTEM, later, USER), ""), (body(USER, says(), later, USER, **tools), "")])
        # A host that does not say otherwise has it for every model.
        self.use(host="vllm")
        rows: Rows = [(body(*wrong[0], model=f"x/{FLASH}"), MISSING_HEADER), (body(model=f"x/{FLASH}"), "")]
        self.assert_rows(rows)

    def test_tools_that_deepseek_runs(self) -> None:
        search, turn = {"type": "deepseek_web_search"}, says(citations=[1])

        def flash(*messages: Any, **fields: Any) -> Json:
            return body(*messages, **{"model": FLASH, "tools": [search], **fields})

        self.assert_rows([
            (flash(tools=[TOOL, search, {"type": "deepseek_read_url"}]), ""),
            (flash(model=PRO), "not available for this model"),
            *((flash(tools=[search, {"type": kind}]), f"unknown variant `{kind}`") for kind in ("web_search", "mcp")),
            (flash(tool_choice=search, **OFF), ""), (flash(tool_choice=search), FORCED_TOOL),
            (flash(tool_choice={"type": "deepseek_read_url"}, **OFF), "no tool of type"),
            (flash(USER, turn, USER), ""), (flash(USER, says(thought=None), USER), MISSING_REASONING),
        ])  # fmt: skip
        self.use(has_chat_alone=True)
        self.assert_rows([(flash(), "unknown variant `deepseek_web_search`")])

    def test_a_lenient_one_takes_what_deepseek_is_only_assumed_to_refuse(self) -> None:
        odd = (USER, without(calls(id="a"), "content"), result(), SYSTEM)
        self.assert_rows([(body(*odd, tools=[TOOL]), "unknown field `id`")])
        self.fake.is_lenient = True
        self.assert_rows([(body(*odd, tools=[TOOL]), "")])
        self.assert_rows([(body(USER, calls(thought=None), result(), tools=[TOOL]), MISSING_REASONING)])


# The other APIs …


class TestResponses(FakeCase):
    def test_what_is_taken_and_refused(self) -> None:
        user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
        picture = {"type": "input_image", "image_url": PNG}
        tool = {"type": "function", "name": "look", "parameters": OBJECT}
        search = {"type": "web_search"}
        found = {"type": "web_search_call", "action": {"type": "search"}}
        summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
        forced = {"tools": [search], "tool_choice": search}

        def thought(text: str = "Hm.", **more: Any) -> Json:
            return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}

        def made(id: str) -> Json:
            return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}

        def output(id: str) -> Json:
            return {"type": "function_call_output", "call_id": id, "output": "blue"}

        def asked(*items: Any, **fields: Any) -> Json:
            return {"model": FLASH, "input": list(items) or [user], **fields}

        lost = [
            (made("a"), output("a")), (said, user), (thought(""), made("a"), output("a")),
            (summary, made("a"), output("a")), ({**summary, "encrypted_content": "x"}, made("a"), output("a")),
            (thought(), made("a"), output("a"), made("b"), output("b")), (found, said),
        ]  # fmt: skip
        self.assert_rows([(asked(user, *items, tools=[tool]), MISSING_REASONING_TEXT) for items in lost], "/responses")
        self.assert_rows([
            (asked(), ""), ({"model": FLASH, "input": "Hello?"}, ""), ({"model": FLASH, "instructions": "Brief."}, ""),
            (asked(user, thought(), said, made("a"), made("b"), output("a"), output("b"), tools=[tool]), ""),
            (asked(user, thought(), made("a"), output("a"), thought(), made("b"), output("b")), ""),
            (asked(user, said, user), ""), (asked(user, {"type": "web_search_call"}), ""),
            (asked(user, made("a"), output("a"), tools=[tool], reasoning={"effort": "none"}), ""),
            (asked({"role": "user", "content": [picture]}), ""), (asked({"role": "developer", "content": "x"}), ""),
            (asked(text={"format": {"type": "json_schema", "name": "n", "schema": {}}}), ""),
            (asked(tools=[{"type": "custom", "name": "apply_patch"}, search, {"type": "file_search"}]), ""),
            (asked(store=True, include=[], metadata={}, previous_response_id="x"), ""),
            (asked(reasoning={"effort": "none"}, **forced), ""), (asked(**forced), FORCED_TOOL),
            (asked(tool_choice=search, reasoning={"effort": "none"}), "not among the tools"),
            (asked(tools=[tool], tool_choice={"type": "function", "name": "look"}), FORCED_TOOL),
            (asked(user, thought(), made("a"), said, output("a")), NO_OUTPUT),
            (asked(user, thought(), made("a")), NO_OUTPUT), (asked(model="gpt-5"), "Model Not Exist"),
            ({"model": FLASH}, "one of `input`"), (asked(user, thought(encrypted_content=None)), "invalid type: null"),
            (asked(user, {"type": "reasoning"}), "summary"), (asked(7), "expected a sequence"),
            (asked({"role": "user", "content": [{**picture, "file_id": "y"}]}), "exactly one"),
            (asked(tools=[{"type": "custom", "name": "grep"}]), "apply_patch"), (asked(tools=[None]), DESERIALIZE),
            (asked(tools=[{"type": "function", "function": tool}]), "missing field `name`"),
            (asked(tools=[{**tool, "parameters": {}}]), ROOT), (asked(max_output_tokens=10**6), "Invalid max_tokens"),
            (asked(text={"format": {"type": "xml"}}), "unknown variant"),
            (asked(text={"format": {"type": "json_schema"}}), "schema"),
            (asked(user, {**found, "action": "search"}), "expected a map"),
            (asked(user, {**found, "id": None}), "invalid type: null"),
        ], "/v1/responses")  # fmt: skip


class TestMessages(FakeCase):
    def test_what_is_taken_and_refused(self) -> None:
        tool = {"name": "look", "description": "Looks.", "input_schema": OBJECT}
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
        own = [{"type": name, "name": name} for name in ("deepseek_web_search", "deepseek_read_url")]
        thought, made = {"type": "thinking", "thinking": "Hm."}, {"type": "tool_use", "name": "look", "input": {}}
        use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
        page = {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "x"}
        hits = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [page]}
        error = {**hits, "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}}
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PNG.partition(",")[2]},
        }
        named, any_tool = {"type": "tool", "name": "look"}, {"type": "any"}
        forced = {"tools": [tool, search], "tool_choice": {"type": "tool", "name": "web_search"}}

        def said(*blocks: Any) -> Json:
            return {"role": "assistant", "content": [{"id": "a", **made} if each is made else each for each in blocks]}

        def user(*blocks: Any) -> Json:
            return {"role": "user", "content": list(blocks)}

        def done(id: str = "a") -> Json:
            return {"type": "tool_result", "tool_use_id": id, "content": "blue"}

        def asked(*messages: Any, **fields: Any) -> Json:
            return {"model": FLASH, "max_tokens": 100, "messages": list(messages) or [USER], **fields}

        lost = [
            (USER, said(made), user(done())), (USER, said(TEXT), USER), (USER, said(use, hits, TEXT), USER),
            (USER, said({**thought, "thinking": ""}, use, hits), USER),
        ]  # fmt: skip
        path = "/anthropic/v1/messages"
        self.assert_rows([(asked(*items, tools=[tool, search]), MISSING_THINKING) for items in lost], path)
        self.assert_rows([
            (asked(), ""), (asked(system="Be brief."), ""), (asked(system=[TEXT]), ""), (asked(model="claude-x"), ""),
            (asked(USER, said(thought, made, {"id": "b", **made}), user(done(), done("b"), TEXT), tools=[tool]), ""),
            (asked(USER, said(TEXT), USER), ""), (asked(tools=[tool, search, *own]), ""),
            (asked(USER, said(thought, use, hits, thought, TEXT), USER, tools=[search]), ""),
            (asked(USER, said(thought, use, error), USER, tools=[search]), ""),
            (asked(USER, said(thought, use, {**hits, "type": "web_fetch_tool_result"}), USER, tools=[search]), ""),
            (asked(USER, said(thought, use), tools=[search]), ""), (asked(tools=[tool], tool_choice=any_tool), ""),
            (asked(tools=[tool], tool_choice=any_tool, **OFF), ""), (asked(**forced, **OFF), ""),
            (asked(output_config={"effort": "max"}, thinking={"type": "enabled"}), ""),
            (asked(user(image, TEXT)), ""), (asked(user(image), model=PRO), ""),
            (asked(thinking={"type": "adaptive", "display": "omitted"}), ""),
            (asked(USER, said({"type": "document"}), USER), "unknown variant `document`"),
            (asked(USER, said({"type": "redacted_thinking"}), USER), "unknown variant"),
            (asked(USER, said(thought, use, {**hits, "type": "mcp_tool_result"}), USER), "unknown variant"),
            (asked(user(use)), "unknown variant"), (asked(USER, said(thought, use, TEXT), USER), "without its result"),
            (asked(USER, said(thought, hits), USER), "without its server_tool_use"),
            (asked(USER, said(use, {**hits, "content": [{}]}), USER), "unknown variant"),
            (asked(tools=[{"type": "code_execution_20250825", "name": "x"}]), "unknown variant"),
            (asked(tools=[{**tool, "type": "custom"}]), "unknown variant `custom`"), (asked(tools=[7]), DESERIALIZE),
            (asked(tools=[{**tool, "name": "web_search"}, search]), "must be unique"),
            (asked(tools=[{**tool, "input_schema": {}}]), "Invalid schema"), (asked(tools=[{"name": "x"}]), "input_"),
            (asked(**forced), FORCED_TOOL), (asked(tools=[tool], tool_choice=named), FORCED_TOOL),
            (asked(tool_choice=named, **OFF), "not found"), (asked(USER, USER), "alternate"),
            (asked(output_config={"effort": "low"}, **OFF), EFFORT_WITHOUT_THINKING),
            (asked(user()), "empty"), (asked(user({"type": "text", "text": ""})), "non-empty"),
            (asked(USER, said(thought, made), user(TEXT, done())), "come first"),
            (asked(USER, said(thought, made), user(TEXT)), UNANSWERED_CALLS), (asked(user(done())), ORPHAN_RESULT),
            (asked(SYSTEM, model=PRO), "in `system`"), (asked(model="gpt-x"), "Model Not Exist"),
            (asked(USER, said(thought, {**use, "cache_control": {}})), "cache_control"),
            (asked(metadata={"user_id": "a" * 513}), "user_id"), ({"model": FLASH, "messages": []}, "messages"),
        ], path)  # fmt: skip
        for name, model in (("claude-opus-4-8", PRO), ("claude-sonnet-5", FLASH)):
            self.ask(asked(model=name), "/anthropic/messages")
            self.assertEqual(model, self.fake.accepted[-1]["model"])


class TestOtherHosts(FakeCase):
    REFUSED: ClassVar[dict[str, list[Json]]] = {
        "openrouter": [{"thinking": {}}, {"reasoning": {"effort": "max"}}, {"reasoning": {"x": 1}}, {"model": PRO}],
        "vllm": [{"thinking": {}}, {"user_id": "x"}],
        "sglang": [{"reasoning": {}}],
        "siliconflow": [{"thinking": {}}, {"thinking_budget": 100_000}],
        "fireworks": [{"thinking": {}, "reasoning_effort": "high"}, {"reasoning_effort": "max"}],
        "ark": [{"reasoning_effort": "max"}],
        "together": [{"reasoning_effort": "max"}, {"thinking": {}}],
        "plain": [{"reasoning_effort": "high"}],
    }

    def test_each_refuses_words_it_does_not_have_and_takes_reasoning_under_its_own_name(self) -> None:
        self.assertEqual(self.REFUSED.keys(), DIALECTS.keys())
        whole = [{"text": str(index), "index": index, "format": "x"} for index in range(2)]
        for host, dialect in DIALECTS.items():
            self.use(host=host)
            model = {"model": f"deepseek-ai/{PRO}"}
            own = {dialect.reasoning, "reasoning" if dialect.reasoning == "reasoning_details" else dialect.reasoning}
            with self.subTest(host):
                self.assertEqual(200, self.sent(body(**model)))
                for fields in self.REFUSED[host]:
                    self.assertEqual(400, self.sent(body(**{**model, **fields})), fields)
                for name in ("reasoning_content", "reasoning", "reasoning_details", "thinking"):
                    turn = says("Hi.", None, **{name: whole if name == "reasoning_details" else "01"})
                    self.assertEqual(200 if name in own else 400, self.sent(body(USER, turn, USER, **model)), name)
                    if name in own:
                        self.assertEqual("01", self.fake.accepted[-1]["messages"][1]["reasoning_content"])
        self.use(host="openrouter")
        for details in (whole[::-1], whole[1:], []):
            turn = says("Hi.", None, reasoning_details=details)
            self.assertEqual(400, self.sent(body(USER, turn, USER, **model)))

    def sent(self, payload: Json) -> int:
        reply = self.send(payload)
        reply.read()
        return reply.status
