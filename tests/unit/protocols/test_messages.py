import itertools
import unittest
from collections.abc import Iterator
from typing import Any

from deepseek_cursor_proxy.conversation import Message, ToolCall, unpack_items
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols import messages
from deepseek_cursor_proxy.protocols.messages import (
    ERROR_LINE,
    Blocks,
    MessageReader,
    has_server_blocks,
    read_blocks,
    read_plain,
)
from deepseek_cursor_proxy.protocols.tools import ToolNames
from tests.support.bad_requests import assert_named
from tests.support.histories import new_chat

ABSENT = object()
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
FIELDS: dict[str, tuple[Any, ...]] = {
    "role": ("user", "system", "assistant", "tool", "developer", "function", "stranger", 1, None, ABSENT),
    "content": ("text", "", None, 1, ["text"], ABSENT),
    "tool_call_id": (ABSENT, "call_1", "", None, 1),
    "reasoning_content": (ABSENT, "why", "", None, 1),
    "tool_calls": (
        ABSENT, None, [], [CALL], [CALL, {**CALL, "index": 1, "id": ""}], [{**CALL, "id": None}],
        [{**CALL, "function": {"name": "read", "arguments": {"a": 1}}}], [{**CALL, "function": None}],
        [{"id": "call_1", "type": "custom", "custom": {"name": "say", "input": "text"}}], ["call"], "calls",
    ),
    "name": (ABSENT, "me"),
    "function_call": (ABSENT, {"name": "read", "arguments": "{}"}),
    "prefix": (ABSENT, True),
}  # fmt: skip


def every_message() -> Iterator[Any]:
    yield from (None, "text", [], {})
    for values in itertools.product(*FIELDS.values()):
        yield {name: value for name, value in zip(FIELDS, values, strict=True) if value is not ABSENT}


def read(message: Any) -> list[Message] | str:
    try:
        return MessageReader().read(message, "messages[0]")
    except BadRequest as error:
        return error.message


class TestPlainMessages(unittest.TestCase):
    def test_the_fast_path_for_messages_gives_the_same_result(self) -> None:
        plain = 0
        for message in every_message():
            found = read_plain(message)
            if found is not None:
                plain += 1
                self.assertEqual([found], read(message), message)
        self.assertGreater(plain, 20)


def long_chat(turns: int) -> list[Any]:
    """A chat of the old functions API, whose calls are counted, with a part that is dropped."""
    history: list[Any] = []
    for number in range(turns):
        history.append({"role": "user", "content": [{"type": "text", "text": f"{number}"}, {"type": "thinking"}]})
        history.append({"role": "assistant", "function_call": {"name": "look", "arguments": f'{{"at":{number}}}'}})
        history.append({"role": "function", "name": "look", "content": f"seen {number}"})
        history.append({"role": "assistant", "content": f"It is {number}."})
    return history


class TestHistory(unittest.TestCase):
    def test_messages_are_read_again_if_the_tools_differ(self) -> None:
        patch = {**CALL, "function": {"name": "patch", "arguments": "{}"}}
        memory, whole, found = new_chat(), [*long_chat(4), {"role": "assistant", "tool_calls": [patch]}], []
        for custom in ({"patch"}, (), {"patch"}):
            names = ToolNames(frozenset(custom), frozenset({"patch"}))
            found.append(messages.read(whole, memory, tools=names).messages[-1].tool_calls[0].arguments)
        self.assertEqual([found[0], "{}", found[0]], found)
        self.assertNotEqual("{}", found[0])

    def test_an_error_in_a_grown_history_has_the_index_of_the_message(self) -> None:
        memory, whole = new_chat(), long_chat(4)
        messages.read(whole, memory)
        with self.assertRaisesRegex(BadRequest, r"messages\[16\]"):
            messages.read([*whole, 5], memory)


URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}


def one(part: Any) -> Any:
    return messages.read_part(part, "at")


class TestContent(unittest.TestCase):
    def test_text_parts_of_every_api_are_joined(self) -> None:
        parts = [{"type": kind, "text": kind} for kind in ("text", "input_text", "output_text")]
        parts += [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": None}]
        self.assertEqual("text\ninput_text\noutput_text\nno\n", messages.read_content(parts, "at"))
        self.assertEqual(("", "", "x"), tuple(messages.read_content(value, "at") for value in (None, [], "x")))

    def test_an_image_of_every_api_becomes_the_same_part(self) -> None:
        for part in (
            IMAGE,
            {"type": "image_url", "image_url": URL},
            {"type": "input_image", "image_url": URL},
            {"type": "input_image", "image_url": {"url": URL}, "detail": "galactic"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "image", "source": {"type": "url", "url": URL}, "cache_control": {"type": "ephemeral"}},
        ):
            self.assertEqual(IMAGE, one(part), part)

    def test_an_image_detail_that_deepseek_knows_stays(self) -> None:
        for part in (
            {"type": "input_image", "image_url": URL, "detail": "low"},
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        ):
            self.assertEqual({"url": URL, "detail": "low"}, one(part)["image_url"])

    def test_files_of_every_api_become_file_parts(self) -> None:
        data = {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}
        document = {"type": "document", "title": "a.pdf", "source": {"type": "base64", "data": "AA"}}
        for part in ({"type": "file", "file": data}, {"type": "input_file", **data}, document):
            self.assertEqual({"type": "file", "file": data}, one(part))
        for part in (
            {"type": "input_image", "file_id": "f"},
            {"type": "input_file", "file_id": "f"},
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
        ):
            self.assertEqual({"type": "file", "file": {"file_id": "f"}}, one(part))
        text = {"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}
        self.assertEqual("[document: T]\nwords", one(text)["text"])

    def test_a_content_part_of_an_unknown_kind_becomes_its_json(self) -> None:
        for part, text in (
            ({"type": "video", "id": 1}, '{"type":"video","id":1}'),
            ({"type": ["odd"]}, '{"type":["odd"]}'),
            ({"type": "image", "source": {"type": "cloud"}}, '{"type":"image","source":{"type":"cloud"}}'),
            ({"type": "file", "file": {}}, '{"type":"file","file":{}}'),
        ):
            self.assertEqual({"type": "text", "text": text}, one(part))

    def test_long_base64_in_an_unknown_part_becomes_a_placeholder(self) -> None:
        for data in ("iVBORw0KGgo" * 100, "data:audio/wav;base64," + "UklGR" * 300 + "==", "gAAA-_" * 200):
            part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}, "more": [data]}
            words = one(part)["text"]
            self.assertEqual((2, True), (words.count(f"[{len(data)} characters]"), '"format":"wav"' in words))
        for text in ("雨" * 2000, "a b " * 500, "x" * 999, "https://x.test/?q=" + "a" * 2000):
            self.assertIn(text, one({"type": "a part of tomorrow", "says": text})["text"])

    def test_cache_control_is_left_out_of_an_unknown_part(self) -> None:
        for part in (
            {"type": "search_result", "title": "T", "content": []},
            {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}},
        ):
            self.assertEqual(one(part), one({**part, "cache_control": {"type": "ephemeral"}}))

    def test_a_bad_content_part_is_a_400_that_names_it(self) -> None:
        def image(url: Any, **fields: Any) -> dict[str, Any]:
            return {"type": "image_url", "image_url": url, **fields}

        rows = (
            ("", 7), (".text", {"type": "text", "text": 7}),
            (".image_url", {"type": "image_url"}, image(7), image(None, type="input_image")),
            (".image_url.url", image({"url": 7})), (".file_id", {"type": "input_image", "file_id": 7}),
            (".detail", image(URL, type="input_image", detail=7)), (".source", {"type": "image"}),
            (".source.data", {"type": "image", "source": {"type": "base64", "data": 7}}),
            (".source.url", {"type": "image", "source": {"type": "url", "url": 7}}),
            (".file.file_id", {"type": "file", "file": {"file_id": 7}}),
        )  # fmt: skip
        assert_named(self, one, "at", *rows)


TEXT = {"type": "text", "text": "words", "cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
IMAGE_BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def read_turn(role: str, *blocks: Any) -> Blocks:
    return read_blocks(list(blocks), role, "content")


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", **fields}


class TestAssistantBlocks(unittest.TestCase):
    def test_assistant_blocks_become_reasoning_text_and_calls(self) -> None:
        thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
        found = read_turn("assistant", thinking, TEXT, USE, {**USE, "id": "b", "input": None})
        calls = (ToolCall("toolu_1", "Read", '{"path":"a"}'), ToolCall("b", "Read", "{}"))
        self.assertEqual(Blocks("words", "hm", calls), found)

    def test_an_empty_thinking_block_is_unknown_reasoning(self) -> None:
        self.assertIsNone(read_turn("assistant", {"type": "thinking", "thinking": "", "signature": "x"}).reasoning)
        self.assertIsNone(read_turn("assistant", TEXT).reasoning)

    def test_redacted_thinking_is_left_out_and_reported_as_dropped(self) -> None:
        found = read_turn("assistant", {"type": "redacted_thinking", "data": "x"}, TEXT)
        self.assertEqual(Blocks("words", dropped=("redacted_thinking",)), found)


class TestServerBlocks(unittest.TestCase):
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
        found = read_turn("user", TEXT, result(content="1"), TEXT, result(tool_use_id="b", content=[TEXT, TEXT]))
        results = Message("tool", "1", tool_call_id="toolu_1"), Message("tool", "words\nwords", tool_call_id="b")
        self.assertEqual(Blocks("words\nwords", results=results), found)

    def test_a_tool_result_block_may_have_any_content(self) -> None:
        for content, expected in ((None, ""), ("x", "x"), ([], ""), ([TEXT], "words")):
            self.assertEqual(expected, read_turn("user", result(content=content)).results[0].content)
        reference = {"type": "tool_reference", "tool_name": "Fetch"}
        text = '{"type":"tool_reference","tool_name":"Fetch"}'
        self.assertEqual(text, read_turn("user", result(content=[reference])).results[0].content)
        output = read_turn("user", result(content=[TEXT, IMAGE_BLOCK])).results[0].content
        self.assertEqual(["text", "image_url"], [part["type"] for part in output])  # type: ignore[index]

    def test_a_tool_result_with_an_error_begins_with_the_error_line(self) -> None:
        self.assertEqual(f"{ERROR_LINE}\nno", read_turn("user", result(content="no", is_error=True)).results[0].content)
        output = read_turn("user", result(content=[IMAGE_BLOCK], is_error=True)).results[0].content
        self.assertEqual({"type": "text", "text": ERROR_LINE}, output[0])
        self.assertEqual("yes", read_turn("user", result(content="yes", is_error=False)).results[0].content)

    def test_blocks_of_the_wrong_role_become_their_json(self) -> None:
        self.assertIn('"tool_use"', str(read_turn("user", USE).content))
        self.assertIn('"tool_result"', str(read_turn("assistant", result(content="x")).content))


class TestOtherContent(unittest.TestCase):
    def test_content_without_blocks_stays_content(self) -> None:
        self.assertEqual([Blocks("x"), Blocks("")], [read_blocks(each, "user", "c") for each in ("x", None)])

    def test_a_bad_block_is_a_400_that_names_it(self) -> None:
        used = ((".id", {**USE, "id": 7}), (".name", {**USE, "name": 7}))
        thought = (".thinking", {"type": "thinking", "thinking": 7})
        assert_named(self, lambda block: read_turn("assistant", block), "content[0]", *used, thought)
        results = ((".tool_use_id", result(tool_use_id=7)), (".is_error", result(is_error="yes")))
        contents = ((".content", result(content=7)), (".content[0]", result(content=[7])), ("", 7))
        assert_named(self, lambda block: read_turn("user", block), "content[0]", *results, *contents)
