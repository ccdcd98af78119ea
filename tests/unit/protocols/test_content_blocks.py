import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Message, ToolCall, unpack_items
from deepseek_cursor_proxy.protocols.messages import ERROR_LINE, Blocks, has_server_blocks, read_blocks
from tests.support.bad_requests import assert_named

TEXT = {"type": "text", "text": "words", "cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def read(role: str, *blocks: Any) -> Blocks:
    return read_blocks(list(blocks), role, "content")


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", **fields}


class TestAssistantBlocks(unittest.TestCase):
    def test_assistant_blocks_become_reasoning_text_and_calls(self) -> None:
        thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
        found = read("assistant", thinking, TEXT, USE, {**USE, "id": "b", "input": None})
        calls = (ToolCall("toolu_1", "Read", '{"path":"a"}'), ToolCall("b", "Read", "{}"))
        self.assertEqual(Blocks("words", "hm", calls), found)

    def test_an_empty_thinking_block_is_unknown_reasoning(self) -> None:
        self.assertIsNone(read("assistant", {"type": "thinking", "thinking": "", "signature": "x"}).reasoning)
        self.assertIsNone(read("assistant", TEXT).reasoning)

    def test_redacted_thinking_is_left_out_and_reported_as_dropped(self) -> None:
        found = read("assistant", {"type": "redacted_thinking", "data": "x"}, TEXT)
        self.assertEqual(Blocks("words", dropped=("redacted_thinking",)), found)


class TestServerBlocks(unittest.TestCase):
    """Turns with blocks of tools that DeepSeek ran itself."""

    def items(self, *blocks: Any) -> list[Any]:
        self.assertTrue(has_server_blocks(list(blocks)))
        return unpack_items(Message("assistant", server_items=self.read(*blocks).server_items), "messages")

    def read(self, *blocks: Any) -> Blocks:
        return read_blocks(list(blocks), "assistant", "content", is_server_turn=True)

    def test_blocks_keep_their_order_and_thoughts_and_calls_become_places(self) -> None:
        thinking = {"type": "thinking", "thinking": "hm"}
        cited = {**TEXT, "citations": [{"url": "u"}]}
        blocks = (thinking, SEARCH, {**FOUND, "cache_control": {}}, {**thinking, "thinking": ""}, cited, USE, TEXT)
        items = self.items(*blocks)
        place, text = {"type": "thinking", "length": 2}, {"type": "text", "text": "words"}
        source = {**text, "citations": [{"url": "u"}]}
        self.assertEqual([place, SEARCH, FOUND, source, {"type": "tool_use"}, text], items)
        found = self.read(*blocks)
        self.assertEqual(("wordswords", "hm", ["toolu_1"]), (found.content, found.reasoning, [found.calls[0].id]))

    def test_results_of_any_kind_are_kept(self) -> None:
        later = {**FOUND, "type": "tomorrow_tool_result"}
        self.assertEqual([SEARCH, later], self.items(SEARCH, later))
        self.assertEqual([later], self.items(later))

    def test_what_deepseek_does_not_run_stays_content(self) -> None:
        for block in (
            {**FOUND, "type": "bash_code_execution_tool_result"}, {**FOUND, "type": "mcp_tool_result"},
            {**SEARCH, "name": "code_execution"}, {**SEARCH, "name": "bash_code_execution"}, {**SEARCH, "id": None},
            {**SEARCH, "input": "q"}, {"type": "mcp_tool_use", "id": "m", "name": "x", "input": {}},
            {"type": "server_tool_use"}, "text", None,
        ):  # fmt: skip
            self.assertFalse(has_server_blocks([block, TEXT]), block)
        self.assertFalse(has_server_blocks("text"))

    def test_redacted_thinking_beside_a_search_is_left_out(self) -> None:
        found = self.read({"type": "redacted_thinking", "data": "x"}, SEARCH, FOUND)
        self.assertEqual(("redacted_thinking",), found.dropped)


class TestToolResults(unittest.TestCase):
    def test_tool_result_blocks_become_tool_messages_beside_the_users_text(self) -> None:
        found = read("user", TEXT, result(content="1"), TEXT, result(tool_use_id="b", content=[TEXT, TEXT]))
        results = Message("tool", "1", tool_call_id="toolu_1"), Message("tool", "words\nwords", tool_call_id="b")
        self.assertEqual(Blocks("words\nwords", results=results), found)

    def test_a_tool_result_block_may_have_any_content(self) -> None:
        for content, expected in ((None, ""), ("x", "x"), ([], ""), ([TEXT], "words")):
            self.assertEqual(expected, read("user", result(content=content)).results[0].content)
        reference = {"type": "tool_reference", "tool_name": "Fetch"}
        text = '{"type":"tool_reference","tool_name":"Fetch"}'
        self.assertEqual(text, read("user", result(content=[reference])).results[0].content)
        output = read("user", result(content=[TEXT, IMAGE])).results[0].content
        self.assertEqual(["text", "image_url"], [part["type"] for part in output])  # type: ignore[index]

    def test_a_tool_result_with_an_error_begins_with_the_error_line(self) -> None:
        self.assertEqual(f"{ERROR_LINE}\nno", read("user", result(content="no", is_error=True)).results[0].content)
        output = read("user", result(content=[IMAGE], is_error=True)).results[0].content
        self.assertEqual({"type": "text", "text": ERROR_LINE}, output[0])
        self.assertEqual("yes", read("user", result(content="yes", is_error=False)).results[0].content)

    def test_blocks_of_the_wrong_role_become_their_json(self) -> None:
        self.assertIn('"tool_use"', str(read("user", USE).content))
        self.assertIn('"tool_result"', str(read("assistant", result(content="x")).content))


class TestOtherContent(unittest.TestCase):
    def test_content_without_blocks_stays_content(self) -> None:
        self.assertEqual([Blocks("x"), Blocks("")], [read_blocks(each, "user", "c") for each in ("x", None)])

    def test_a_bad_block_is_a_400_that_names_it(self) -> None:
        used = ((".id", {**USE, "id": 7}), (".name", {**USE, "name": 7}))
        thought = (".thinking", {"type": "thinking", "thinking": 7})
        assert_named(self, lambda block: read("assistant", block), "content[0]", *used, thought)
        results = ((".tool_use_id", result(tool_use_id=7)), (".is_error", result(is_error="yes")))
        contents = ((".content", result(content=7)), (".content[0]", result(content=[7])), ("", 7))
        assert_named(self, lambda block: read("user", block), "content[0]", *results, *contents)
