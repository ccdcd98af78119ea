import unittest
from typing import Any

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Message
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request import THINKING_FIELDS, ThinkingOptions, parse, read_thinking
from tests.support.bad_requests import assert_named

HI = [{"role": "user", "content": "hi"}]


def parsed(_settings: dict[str, Any] | None = None, **body: Any) -> ChatRequest:
    return parse({"model": "deepseek-v4-pro", "messages": HI, **body}, ProxyConfig(**(_settings or {})))


def message(**fields: Any) -> Message:
    return parsed(messages=[fields]).messages[0]


class TestFields(unittest.TestCase):
    def test_request_fields_that_deepseek_knows_are_forwarded(self) -> None:
        fields: dict[str, Any] = {"max_tokens": 5, "stop": ["a"], "temperature": 0.5, "top_p": 1, "presence_penalty": 0}
        fields |= {"frequency_penalty": 0.1, "logprobs": True, "top_logprobs": 3, "seed": 7, "logit_bias": {"1": 2}}
        fields |= {"user_id": "me", "response_format": {"type": "json_object"}}
        self.assertEqual(fields, parsed(**fields).params)

    def test_request_fields_with_another_name_at_deepseek_are_translated(self) -> None:
        self.assertEqual({"max_tokens": 5}, parsed(max_completion_tokens=5).params)
        self.assertEqual({"max_tokens": 3}, parsed(max_completion_tokens=5, max_tokens=3).params)
        self.assertEqual({"user_id": "abc-1_2"}, parsed(user="abc-1_2").params)

    def test_a_user_that_is_no_valid_user_id_is_left_out(self) -> None:
        for user in ("", "ä", "a b", "x" * 513):
            self.assertEqual({}, parsed(user=user).params)

    def test_max_tokens_and_user_id_are_brought_within_deepseeks_limits(self) -> None:
        self.assertEqual({"max_tokens": 393_216}, parsed(max_tokens=10**9).params)
        request = parsed(user_id="not legal", user="legal")
        self.assertEqual(({"user_id": "legal"}, ("user_id",)), (request.params, request.dropped))

    def test_a_prefix_is_kept_for_an_upstream_that_has_the_beta_path(self) -> None:
        history = [*HI, {"role": "assistant", "content": "Sure, ", "prefix": True}]
        for settings, is_kept in (
            ({"upstream_base_url": "https://api.deepseek.com/beta"}, True),
            ({"upstream_base_url": "https://api.deepseek.com/v1"}, True),
            ({"upstream_base_url": "http://127.0.0.1:1", "upstream_host": "deepseek"}, True),
            ({"upstream_base_url": "http://127.0.0.1:1/beta/"}, True),
            ({"upstream_base_url": "http://127.0.0.1:1"}, False),
            ({"upstream_base_url": "https://openrouter.ai/api/v1"}, False),
        ):
            with self.subTest(settings):
                request = parsed(settings, messages=history)
                expected = (is_kept, () if is_kept else ("prefix",))
                self.assertEqual(expected, (request.messages[1].prefix, request.dropped))

    def test_a_prefix_before_the_last_message_is_left_out(self) -> None:
        turn = {"role": "assistant", "content": "Sure, ", "prefix": True}
        beta = parsed({"upstream_base_url": "https://api.deepseek.com"}, messages=[*HI, turn, *HI, turn])
        self.assertEqual([False, False, False, True], [message.prefix for message in beta.messages])
        self.assertEqual(("prefix",), beta.dropped)

    def test_a_null_field_counts_as_absent(self) -> None:
        names = "max_tokens stop tools tool_choice stream user temperature n reasoning reasoning_effort functions"
        self.assertEqual(parsed(), parsed(**dict.fromkeys(names.split())))

    def test_unknown_request_fields_are_reported_as_dropped(self) -> None:
        request = parsed(parallel_tool_calls=True, store=False, metadata={})
        self.assertEqual(("metadata", "parallel_tool_calls", "store"), request.dropped)
        self.assertEqual({}, request.params)

    def test_the_request_keeps_the_clients_model_name(self) -> None:
        request = parsed(model="gpt-9")
        self.assertEqual(("gpt-9", "deepseek-v4-pro"), (request.requested_model, request.model))
        self.assertEqual("mine", parsed({"upstream_model": "mine"}, model=None).requested_model)

    def test_a_request_may_have_one_to_eight_choices(self) -> None:
        self.assertEqual([1, 1, 8], [parsed(n=n).choices for n in (None, 1, 8)])
        self.assertEqual({}, parsed(n=2).params)
        assert_named(self, lambda n: parsed(n=n), "", ("n", 0, -1, 9, 10**30))

    def test_a_field_of_the_wrong_type_is_a_400_that_names_it(self) -> None:
        for names, values in (
            ("model messages stop tools functions tool_choice user user_id reasoning_effort", [7]),
            ("instructions system metadata prompt_cache_key text", [7]),
            ("model tool_choice instructions temperature logit_bias", [[]]),
            ("messages tools top_p system response_format", [{}]),
            ("max_tokens max_completion_tokens max_output_tokens", ["5", True]), ("max_tokens", [-1, 0, 1.5]),
            ("messages", [None, "hi"]), ("stream", ["yes", 1]), ("stream_options", [True]), ("top_logprobs", [21, -1]),
            ("temperature", ["hot", True, 2.1, -1]), ("top_p", [1.1]), ("stop", [[7]]), ("logprobs", [1]),
            ("seed metadata", ["x"]), ("n", ["2", 1.5]), ("reasoning", ["high"]),
            ("response_format", ["json", {"type": "xml"}]),
        ):  # fmt: skip
            for name in names.split():
                assert_named(self, lambda value, name=name: parsed(**{name: value}), "", (name, *values))


class TestKnownChats(unittest.TestCase):
    def test_values_that_python_takes_for_equal_are_read_anew(self) -> None:
        for name in ("messages", "input"):
            memory = ChatMemory(min_body_bytes=0)
            for value in (1, True, 1.0):
                part, tool = {"type": "new", "n": value}, {"name": "f", "parameters": {"const": value}}
                history = [{"type": "message", "role": "user", "content": each} for each in ("hi", [part])]
                body, chat = memory.decode(encode_json({name: history, "tools": [tool]}))
                with self.subTest(name, value=value):
                    self.assertEqual(repr(parse(body, ProxyConfig())), repr(parse(body, ProxyConfig(), chat)))
                chat.keep()


class TestOtherShapes(unittest.TestCase):
    def items(self, **body: Any) -> ChatRequest:
        return parse({"model": "gpt-5.6-sol", **body}, ProxyConfig())

    def test_a_responses_body_becomes_a_chat_request(self) -> None:
        options = {"max_output_tokens": 5, "reasoning": {"effort": "xhigh", "summary": "auto"}}
        options["text"] = {"format": {"type": "json_object"}, "verbosity": "low"}
        options["metadata"] = {"cursorConversationId": "chat-1", "cursorRequestId": "r"}
        options |= {"include": ["reasoning.encrypted_content"], "tools": [{"type": "function", "name": "f"}]}
        request = self.items(instructions="s", input="hi", **options)
        self.assertEqual((Message("system", "s"), Message("user", "hi")), request.messages)
        self.assertEqual({"max_tokens": 5, "response_format": {"type": "json_object"}}, request.params)
        self.assertEqual(("chat-1", "high"), (request.chat_name.id, request.effort))
        self.assertEqual(({"type": "function", "function": {"name": "f"}},), request.tools)
        self.assertEqual(("include", "reasoning.summary", "text.verbosity"), request.dropped)

    def test_instructions_or_items_alone_make_a_request(self) -> None:
        self.assertEqual((Message("system", "s"),), self.items(instructions="s").messages)
        self.assertEqual((Message("user", "q"),), self.items(input=[{"role": "user", "content": "q"}]).messages)
        self.assertEqual((Message("user", "q"),), self.items(input="q", messages=[]).messages)
        for body in ({"input": []}, {"messages": []}, {"instructions": ""}):
            with self.subTest(body), self.assertRaises(BadRequest):
                self.items(**body)

    def test_messages_win_over_input_which_is_reported_as_dropped(self) -> None:
        request = parsed(input="other")
        self.assertEqual((Message("user", "hi"),), request.messages)
        self.assertEqual(("input",), request.dropped)

    def test_items_in_a_list_of_messages_are_read(self) -> None:
        call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
        request = parsed(messages=[*HI, call, {"type": "function_call_output", "call_id": "a", "output": "x"}])
        self.assertEqual(["user", "assistant", "tool"], [each.role for each in request.messages])

    def test_a_responses_schema_becomes_a_response_format(self) -> None:
        form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
        expected = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        self.assertEqual(expected, parsed(text={"format": form}).params["response_format"])
        self.assertEqual({}, parsed(text={"format": {"type": "text"}}).params)

    def test_the_conversation_id_comes_from_cursor_or_the_prompt_cache_key(self) -> None:
        named = {"cursorConversationId": "c"}
        for body, name in (
            ({"metadata": named}, "c"), ({"metadata": named, "prompt_cache_key": "k"}, "c"),
            ({"metadata": {}, "prompt_cache_key": "k"}, "k"), ({"metadata": {"x": 1}}, ""),
            ({"prompt_cache_key": ""}, ""),
        ):  # fmt: skip
            self.assertEqual(name, parsed(**body).chat_name.id)

    def test_images_are_limited_for_models_that_see_them(self) -> None:
        long = {"type": "image_url", "image_url": {"url": "https://e.com/" + "x" * 9000}}
        history = [{"role": "user", "content": [long]}]
        parsed(messages=history)
        with self.assertRaises(BadRequest):
            parsed(model="deepseek-flash", messages=history)


class TestThinking(unittest.TestCase):
    def test_the_effort_follows_deepseeks_table(self) -> None:
        for words, sent in (("minimal low", "low"), ("medium high xhigh", "high"), ("max ultra", "max")):
            for requested in words.split():
                self.assertEqual(sent, parsed(reasoning_effort=requested).effort)
                self.assertEqual(sent, parsed(reasoning={"effort": requested}).effort)
                self.assertEqual(sent, parsed({"reasoning_effort": requested}).effort)

    def test_an_unknown_effort_gets_the_configured_one(self) -> None:
        self.assertEqual("max", parsed({"reasoning_effort": "max"}, reasoning_effort="galactic").effort)


class TestMessages(unittest.TestCase):
    def test_roles_that_deepseek_does_not_know_are_translated(self) -> None:
        for requested, role in {"developer": "system", "wizard": "user", "system": "system", "user": "user"}.items():
            self.assertEqual(Message(role, "x"), message(role=requested, content="x"))

    def test_empty_reasoning_is_not_absent_reasoning(self) -> None:
        self.assertEqual("", message(role="assistant", content="x", reasoning_content="").reasoning)
        self.assertIsNone(message(role="assistant", content="x", reasoning_content=None).reasoning)
        self.assertIsNone(message(role="assistant", content="x").reasoning)

    def test_a_legacy_function_call_and_its_result_get_the_same_id(self) -> None:
        call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
        results = [{"role": "function", "name": "f", "content": text} for text in "12"]
        _, *calls_and_results = parsed(messages=[*HI, call, results[0], call, results[1]]).messages
        calls, tools = calls_and_results[::2], calls_and_results[1::2]
        self.assertEqual(["tool", "tool"], [each.role for each in tools])
        self.assertEqual([each.tool_calls[0].id for each in calls], [each.tool_call_id for each in tools])
        self.assertNotEqual(tools[0].tool_call_id, tools[1].tool_call_id)

    def test_a_bad_message_is_a_400_that_names_it(self) -> None:
        def said(**fields: Any) -> dict[str, Any]:
            return {"role": "user", **fields}

        def turn(**fields: Any) -> dict[str, Any]:
            return {"role": "assistant", **fields}

        call = {"id": 7, "function": {"name": "f", "arguments": "{}"}}
        rows = (
            *((name, turn(**{name: 7})) for name in ("tool_calls", "reasoning_content", "prefix", "function_call")),
            ("role", {}, {"role": []}),
            ("content", said(content=7), said(content={"a": 1})),
            ("content[0]", said(content=[7])),
            ("content[0].text", said(content=[{"type": "text", "text": 7}])),
            ("name", said(content="x", name=7)),
            ("tool_calls[0]", turn(tool_calls=[7])),
            ("tool_calls[0].function", turn(tool_calls=[{}])),
            ("tool_calls[0].id", turn(tool_calls=[call])),
            ("tool_calls[0].function.name", turn(tool_calls=[{"function": {"name": 7}}])),
            ("tool_call_id", {"role": "tool", "tool_call_id": 7}),
        )
        assert_named(self, lambda odd: parsed(messages=[*HI, odd]), "messages[1].", *rows)
        assert_named(self, lambda messages: parsed(messages=messages), "messages", ("", []), ("[1]", [*HI, 7]))


ON, OFF = {"type": "enabled"}, {"type": "disabled"}


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


class TestRead(unittest.TestCase):
    def test_every_field_that_switches_thinking_is_read(self) -> None:
        for thinking, *bodies in (
            (None, {}, {"thinking": {"type": "adaptive"}}, {"thinking": {}}, dict.fromkeys(THINKING_FIELDS)),
            (True, {"thinking": ON}, {"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
            (True, {"extra_body": {"chat_template_kwargs": {"thinking": True}}}),
            (False, {"thinking": OFF}, {"thinking": False}, {"enable_thinking": False}),
            (False, {"chat_template_kwargs": {"thinking": False}}, {"extra_body": {"enable_thinking": False}}),
            (False, {"extra_body": {"reasoning_effort": "none"}}, {"reasoning": {"enabled": False}}),
            (False, {"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}),
        ):
            for fields in bodies:
                self.assertEqual(thinking, read_thinking(fields).thinking, fields)

    def test_of_two_contradicting_thinking_fields_the_more_direct_wins(self) -> None:
        for fields, thinking in (
            ({"thinking": ON, "enable_thinking": False, "reasoning_effort": "none"}, True),
            ({"thinking": OFF, "reasoning_effort": "max"}, False),
            ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, True),
            ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, True),
            ({"enable_thinking": False, "extra_body": {"thinking": ON}}, False),
            ({"thinking": {"type": "adaptive"}, "enable_thinking": False}, False),
            ({"reasoning": {"enabled": True, "effort": "none"}}, True),
        ):
            self.assertEqual(thinking, read_thinking(fields).thinking, fields)

    def test_the_effort_is_read_from_every_field_that_may_hold_it(self) -> None:
        for fields, effort in (
            ({"reasoning_effort": "low", "reasoning": {"effort": "max"}}, "low"),
            ({"reasoning": {"effort": "max"}}, "max"),
            ({"chat_template_kwargs": {"reasoning_effort": "max", "thinking": True}}, "max"),
            ({"extra_body": {"reasoning_effort": "max"}}, "max"),
        ):
            self.assertEqual(effort, read_thinking(fields).effort, fields)

    def test_unknown_thinking_options_are_reported_as_dropped(self) -> None:
        fields = {
            "thinking": {"type": "galactic", "budget_tokens": 5}, "chat_template_kwargs": {"tools_in_user": True},
            "extra_body": {"top_k": 1}, "reasoning": {"effort": "huge", "summary": "auto"},
        }  # fmt: skip
        named = "thinking.budget_tokens chat_template_kwargs.tools_in_user extra_body.top_k reasoning.summary"
        dropped = (*named.split(), "thinking.type galactic", "reasoning_effort huge")
        self.assertEqual(ThinkingOptions(None, "huge", dropped), read_thinking(fields))
        self.assertEqual((), read_thinking({"thinking": OFF, "enable_thinking": True}).dropped)

    def test_a_thinking_field_of_the_wrong_type_is_a_400_that_names_it(self) -> None:
        fields = {"thinking": "yes", "enable_thinking": "false", "chat_template_kwargs": [], "extra_body": "x"}
        inner = ("thinking.type", "chat_template_kwargs.thinking", "extra_body.thinking", "reasoning.enabled")
        rows = [(name, {name: value}) for name, value in {**fields, "reasoning_effort": 1}.items()]
        rows += [(path, {path.split(".")[0]: {path.split(".")[1]: 1}}) for path in inner]
        assert_named(self, read_thinking, "", *rows)


class TestPriority(unittest.TestCase):
    def test_thinking_in_the_body_beats_the_model_name_which_beats_the_setting(self) -> None:
        for setting, suffix, fields, thinking in (
            ("enabled", "", {}, True), ("disabled", "", {}, False), ("disabled", "-thinking", {}, True),
            ("enabled", "-nothink", {}, False), ("enabled", "-thinking", {"thinking": OFF}, False),
            ("enabled", "", {"enable_thinking": False}, False), ("enabled", "", {"reasoning_effort": "none"}, False),
            ("enabled", "", {"reasoning": {"effort": "none"}}, False), ("disabled", "", {"thinking": ON}, True),
            ("enabled", "-nothink", {"thinking": ON}, True),
            ("disabled", "-nothink", {"chat_template_kwargs": {"thinking": True}}, True),
            ("enabled", "-nothink", {"thinking": {"type": "adaptive"}}, False),
            ("disabled", "", {"reasoning_effort": "max"}, False),
        ):  # fmt: skip
            request = parse(body(model=f"deepseek-v4-pro{suffix}", **fields), ProxyConfig(thinking=setting))
            self.assertEqual(thinking, request.thinking, (setting, suffix, fields))

    def test_a_short_answer_is_written_without_thinking_unless_the_client_names_it(self) -> None:
        """Thinking counts into the limit and would use it up."""
        named = (
            {"thinking": ON}, {"enable_thinking": True}, {"reasoning_effort": "low"}, {"reasoning": {"effort": "x"}},
        )  # fmt: skip
        unnamed = (
            {}, {"thinking": {"type": "adaptive"}}, {"reasoning": {"summary": "auto"}}, {"reasoning_effort": None},
        )  # fmt: skip
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            for limit, fields, thinking in (
                *((999, fields, True) for fields in named),
                *((999, fields, False) for fields in unnamed),
                *((limit, fields, True) for limit in (1000, None) for fields in (*named, *unnamed)),
            ):
                for suffix in ("", "[1m]"):
                    asked = body(model=f"deepseek-v4-pro{suffix}", **{name: limit}, **fields)
                    self.assertEqual(thinking, parse(asked, ProxyConfig(reasoning_effort="max")).thinking, asked)
                for suffix, expected in (("-thinking", True), ("-max", True), ("-nothink", False)):
                    asked = body(model=f"deepseek-v4-pro{suffix}", **{name: limit})
                    self.assertEqual(expected, parse(asked, ProxyConfig()).thinking, asked)

    def test_thinking_enabled_beside_effort_none_gets_the_configured_effort(self) -> None:
        request = parse(body(thinking=ON, reasoning_effort="none"), ProxyConfig(reasoning_effort="max"))
        self.assertEqual((True, "max"), (request.thinking, request.effort))


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
EXEC = {"type": "function", "name": "exec_command", "description": "Runs.", "strict": False, "parameters": SCHEMA}
SPAWN = {"type": "function", "name": "spawn_agent", "description": "Spawns.", "strict": False, "parameters": SCHEMA}
AGENTS: dict[str, Any] = {"type": "namespace", "name": "multi_agent_v1", "description": "Tools for agents."}
AGENTS["tools"] = [SPAWN, {**SPAWN, "name": "wait_agent"}]
SEARCH = {"type": "web_search", "external_web_access": True}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": LARK}
TOOLS = (EXEC, AGENTS, SEARCH, PATCH)
SPAWNED = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "call_1"}
SPAWNED |= {"name": "spawn_agent", "namespace": "multi_agent_v1", "arguments": '{"message": "hi"}'}
HISTORY = (
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are Codex."}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
    SPAWNED,
    {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "done"},
)


def request(*tools: Any, **body: Any) -> ChatRequest:
    return parse({"model": "deepseek-v4-pro", "input": list(HISTORY), "tools": list(tools), **body}, ProxyConfig())


class TestCodexTools(unittest.TestCase):
    def test_a_client_that_echoes_the_upstream_name_has_the_same_chat(self) -> None:
        """Cursor gets these calls as chat chunks, which have no namespace."""
        echoed = {**SPAWNED, "name": "multi_agent_v1__spawn_agent", "namespace": None}
        items = [echoed if item is SPAWNED else item for item in HISTORY]
        self.assertEqual(request(*TOOLS).messages, request(*TOOLS, input=items).messages)
