"""The fake DeepSeek is as strict on its Messages API as on chat completions, and plays searches there."""

import json
import unittest
from typing import Any

from tests.fake_deepseek import (
    Answer,
    BlockAnswer,
    Call,
    Citation,
    Search,
    contract,
    messages_contract,
)
from tests.fake_deepseek.contract import EFFORT_WITHOUT_THINKING, FORCED_TOOL, Refusal
from tests.fake_deepseek.test_fake_deepseek import FakeCase
from tests.support.messages_client import add_up_events, events

PATH = "/anthropic/v1/messages"
USER = {"role": "user", "content": "Hello?"}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
TEXT = {"type": "text", "text": "Hi."}
THOUGHT = {"type": "thinking", "thinking": "Hm."}
OFF = {"thinking": {"type": "disabled"}}
USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "x", "page_age": None}
RESULT = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]}
ERROR = {"type": "web_search_tool_result_error", "error_code": "unavailable"}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def call(id: str = "a") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}}


def result(id: str = "a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "blue", **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "deepseek-flash", "max_tokens": 100, "messages": list(messages) or [USER], **fields}


def refused(asked: Any) -> str | None:
    """The words in which a body is refused."""
    read = messages_contract.read(json.dumps(asked).encode())
    found = read if isinstance(read, Refusal) else _refusal(read)
    return None if found is None else found.message


def _refusal(read: dict[str, Any]) -> Refusal | None:
    return messages_contract.refusal(read, contract.NEWEST_RULES)


class TestRefusals(unittest.TestCase):
    def test_messages_of_a_careful_client_are_accepted(self) -> None:
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
        any_tool = {"type": "any"}
        for name, asked in {
            "a question": body(),
            "a system prompt": body(system="Be brief."),
            "a system prompt in blocks": body(system=[TEXT]),
            "a tool loop": body(
                USER, said(THOUGHT, call(), call("b")), user(result(), result("b"), TEXT), tools=[TOOL]
            ),
            "a plain chat without tools": body(USER, said(TEXT), USER),
            "every server tool": body(tools=[TOOL, SEARCH, *map(_deepseek_tool, ("web_search", "read_url"))]),
            "a search": body(USER, said(THOUGHT, USE, RESULT, THOUGHT, TEXT), USER, tools=[SEARCH]),
            "a search that failed": body(USER, said(THOUGHT, USE, {**RESULT, "content": ERROR}), USER, tools=[SEARCH]),
            "a result of another kind": body(
                USER, said(THOUGHT, USE, {**RESULT, "type": "web_fetch_tool_result"}), USER, tools=[SEARCH]
            ),
            "a turn that paused": body(USER, said(THOUGHT, USE), tools=[SEARCH]),
            "any tool, while thinking": body(tools=[TOOL], tool_choice=any_tool),
            "any tool": body(tools=[TOOL], tool_choice=any_tool, **OFF),
            "a forced search": body(tools=[SEARCH], tool_choice={"type": "tool", "name": "web_search"}, **OFF),
            "an effort": body(output_config={"effort": "max"}, thinking={"type": "enabled"}),
            "a picture": body(user(picture, TEXT)),
            "a picture for pro": {**body(user(picture, TEXT)), "model": "deepseek-v4-pro"},
            "thinking as Claude Code asks for it": body(thinking={"type": "adaptive", "display": "omitted"}),
        }.items():
            with self.subTest(name):
                self.assertIsNone(refused(asked))

    def test_names_of_claude_are_those_of_deepseeks_models(self) -> None:
        for name, model in (("claude-opus-4-8", "deepseek-v4-pro"), ("claude-sonnet-5", "deepseek-flash")):
            read = messages_contract.read(json.dumps({**body(), "model": name}).encode())
            assert isinstance(read, dict)
            self.assertEqual((model, None), (read["model"], _refusal(read)))

    def test_messages_without_their_thinking_are_refused(self) -> None:
        for name, asked in {
            "before a call": body(USER, said(call()), user(result()), tools=[TOOL]),
            "in a plain turn": body(USER, said(TEXT), USER, tools=[TOOL]),
            "before a search": body(USER, said(USE, RESULT, TEXT), USER, tools=[SEARCH]),
            "an empty one": body(USER, said({**THOUGHT, "thinking": ""}, USE, RESULT), USER, tools=[SEARCH]),
        }.items():
            with self.subTest(name):
                self.assertEqual(messages_contract.MISSING_THINKING, refused(asked))

    def test_other_wrong_messages_are_refused(self) -> None:
        forced = {"tools": [TOOL, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}
        named = {"type": "tool", "name": "look"}
        prompt = {"role": "system", "content": "x"}
        mcp = {"type": "mcp_tool_result", "tool_use_id": "srvtoolu_1"}
        for name, asked, words in (
            ("an unknown block", body(USER, said({"type": "document"}), USER), "unknown variant `document`"),
            ("redacted thinking", body(USER, said({"type": "redacted_thinking"}), USER), "unknown variant"),
            ("a result of MCP", body(USER, said(THOUGHT, USE, mcp), USER), "unknown variant"),
            ("a search of the user", body(user(USE)), "unknown variant"),
            ("a use without a result", body(USER, said(THOUGHT, USE, TEXT), USER), "without its result"),
            ("a result without a use", body(USER, said(THOUGHT, RESULT), USER), "without its server_tool_use"),
            ("a found page without a URL", body(USER, said(USE, {**RESULT, "content": [{}]}), USER), "unknown variant"),
            ("an unknown tool", body(tools=[{"type": "code_execution_20250825", "name": "x"}]), "unknown variant"),
            ("two tools of a name", body(tools=[{**TOOL, "name": "web_search"}, SEARCH]), "must be unique"),
            ("a schema that is none", body(tools=[{**TOOL, "input_schema": {}}]), "Invalid schema"),
            ("a tool without schema", body(tools=[{"name": "look"}]), "input_schema"),
            ("a forced search while thinking", body(**forced), FORCED_TOOL),
            ("a forced tool while thinking", body(tools=[TOOL], tool_choice=named), FORCED_TOOL),
            ("a tool that is not there", body(tool_choice=named, **OFF), "not found"),
            ("an effort without thinking", body(output_config={"effort": "low"}, **OFF), EFFORT_WITHOUT_THINKING),
            ("two in a row", body(USER, USER), "alternate"),
            ("no content", body({"role": "user", "content": []}), "empty"),
            ("empty text", body(user({"type": "text", "text": ""})), "non-empty"),
            ("a late result", body(USER, said(THOUGHT, call()), user(TEXT, result())), "come first"),
            ("no result", body(USER, said(THOUGHT, call()), user(TEXT)), "insufficient tool messages"),
            ("a result without a call", body(user(result())), "must be a response"),
            ("a system message for Pro", {**body(prompt), "model": "deepseek-v4-pro"}, "in `system`"),
            ("cache_control on a search", body(USER, said(THOUGHT, {**USE, "cache_control": {}})), "cache_control"),
            ("an unknown model", {**body(), "model": "gpt-x"}, "Model Not Exist"),
            ("a function with a type", body(tools=[{**TOOL, "type": "custom"}]), "unknown variant `custom`"),
            ("a user id", body(metadata={"user_id": "a" * 513}), "user_id"),
            ("no messages", {"model": "deepseek-flash", "messages": []}, "messages"),
            ("a number as a tool", body(tools=[7]), "Failed to deserialize"),
        ):
            with self.subTest(name):
                self.assertIn(words, refused(asked) or "taken")


def _deepseek_tool(name: str) -> dict[str, Any]:
    return {"type": f"deepseek_{name}", "name": f"deepseek_{name}"}


class TestAnswers(FakeCase):
    ANSWER = Answer(
        reasoning="Well.",
        content="Found two.",
        calls=(Call("call_a", "look", '{"at": 1}'),),
        searches=(Search(("one", "uno"), reasoning="Hm."), Search(("two",), text="Again.", status="failed")),
        citations=(Citation("https://a", "A", 0, 5), Citation("https://b", "B", 6, 9)),
        piece=2,
    )

    def told(self, **fields: Any) -> list[dict[str, Any]]:
        return events(self.send(body(stream=True, **fields), path=PATH).read())

    def test_a_message_has_its_searches_between_thoughts(self) -> None:
        self.fake.answer(self.ANSWER)
        message = self.ask(body(tools=[SEARCH]), path="/anthropic/messages")
        kinds = [block["type"] for block in message["content"]]
        search = ["server_tool_use", "web_search_tool_result"]
        self.assertEqual(["thinking", *search, "text", *search, "thinking", "text", "tool_use"], kinds)
        self.assertEqual("tool_use", message["stop_reason"])
        self.assertEqual({"web_search_requests": 1}, message["usage"]["server_tool_use"])
        self.assertEqual(["https://a", "https://b"], [each["url"] for each in message["content"][7]["citations"]])
        self.assertEqual("unavailable", message["content"][5]["content"]["error_code"])

    def test_nothing_is_searched_without_the_tool(self) -> None:
        self.fake.answer(self.ANSWER)
        message = self.ask(body(), path=PATH)
        self.assertEqual(["thinking", "text", "tool_use"], [block["type"] for block in message["content"]])
        self.assertNotIn("citations", message["content"][1])

    def test_the_events_add_up_to_the_message(self) -> None:
        unknown = {"type": "deepseek_read_url_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "page"}}
        for answer in (self.ANSWER, BlockAnswer(blocks=({**THOUGHT, "signature": "s"}, USE, unknown, TEXT))):
            self.fake.answer(answer, answer)
            whole, told = self.ask(body(tools=[SEARCH]), path=PATH), self.told(tools=[SEARCH])
            self.assertEqual("ping", told[1]["type"])
            added_up = add_up_events(told)
            for block in (*whole["content"], *added_up["content"]):
                # They are made of the id of the answer.
                block.pop("signature", None)
                block.pop("id", None)
                block.pop("tool_use_id", None)
            self.assertEqual(whole["content"], added_up["content"])

    def test_a_request_that_does_not_think_gets_no_thoughts(self) -> None:
        self.fake.answer(self.ANSWER)
        message = self.ask(body(tools=[SEARCH], **OFF), path=PATH)
        self.assertNotIn("thinking", [block["type"] for block in message["content"]])

    def test_ends_are_told_in_the_words_of_the_api(self) -> None:
        for finish, reason in (("length", "max_tokens"), ("content_filter", "refusal"), ("pause_turn", "pause_turn")):
            self.fake.answer(Answer(content="Hi", finish_reason=finish))
            self.assertEqual(reason, self.told()[-2]["delta"]["stop_reason"])
        self.fake.answer(Answer(content="Hi", finish_reason="aborted"))
        self.assertEqual("error", self.told()[-1]["type"])

    def test_an_answer_that_comes_back_is_in_the_prefix_cache(self) -> None:
        self.fake.answer(self.ANSWER)
        message = self.ask(body(tools=[TOOL, SEARCH]), path=PATH)
        for block in message["content"]:
            block.pop("signature", None)
        again = body(USER, said(*message["content"]), user(result("call_a")), tools=[TOOL, SEARCH])
        self.assertGreater(self.ask(again, path=PATH)["usage"]["cache_read_input_tokens"], 100)

    def test_other_paths_are_not_found(self) -> None:
        self.assertEqual(404, self.send(body(), path="/anthropic/v2/messages").status)
