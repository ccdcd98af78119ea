import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Message, Reply, pack_items, unpack_items
from deepseek_cursor_proxy.deepseek import server_tools
from deepseek_cursor_proxy.deepseek.api import CHAT, with_server_tools
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.reasoning.identity import digest_message

SEARCH = {"type": "web_search_20250305", "name": "web_search"}


class TestKinds(unittest.TestCase):
    def test_each_api_runs_the_tools_of_the_table(self) -> None:
        for kind, apis in {
            "deepseek_web_search": "chat messages responses", "deepseek_read_url": "chat messages responses",
            "web_search": "responses", "web_search_preview": "responses", "web_search_preview_2025_03_11": "responses",
            "web_search_2025_08_26": "responses", "web_search_20250305": "messages", "web_search_20260209": "messages",
            "web_fetch_20250910": "", "file_search": "", "code_interpreter": "", "code_execution_20250825": "",
            "computer_use_preview": "", "image_generation": "", "mcp": "", "function": "",
        }.items():  # fmt: skip
            with self.subTest(kind):
                every = (server_tools.CHAT, server_tools.MESSAGES, server_tools.RESPONSES)
                found = [api for api in every if server_tools.is_run_by_deepseek(kind, api)]
                self.assertEqual(apis.split(), found)


class TestLeaveOut(unittest.TestCase):
    def test_an_upstream_that_runs_none_gets_none_and_each_kind_is_named(self) -> None:
        request = ChatRequest("m", "m", (), tool_choice="auto", dropped=("a",), server_tools=(SEARCH, SEARCH))
        left = server_tools.leave_out(request)
        self.assertEqual(
            ((), None, ("a", "tool web_search_20250305")), (left.server_tools, left.tool_choice, left.dropped)
        )

    def test_a_forced_one_is_refused(self) -> None:
        request = ChatRequest("m", "m", (), server_tools=(SEARCH,))
        for forced in (
            request._replace(server_choice={"type": "web_search"}),
            request._replace(tool_choice="required"),
        ):
            with self.subTest(forced), self.assertRaises(BadRequest):
                server_tools.leave_out(forced)


class TestRefusals(unittest.TestCase):
    def test_which_refusals_are_worth_a_call_without_them(self) -> None:
        request = ChatRequest("m", "m", (), server_tools=(SEARCH,))
        variant = "tools[3].type: unknown variant `web_search_20250305`, expected `function`"
        for status, message, is_known, is_unknown in (
            (400, variant, True, True), (422, "missing field `function`; see the tools", True, True),
            (400, "temperature is odd", False, True), (404, "", True, True), (405, "", True, True),
            (501, "", True, True), (500, "boom", False, True), (200, "no stream", False, True),
            (401, variant, False, False), (402, variant, False, False), (403, variant, False, False),
            (413, variant, False, False), (429, variant, False, False), (503, variant, False, False),
        ):  # fmt: skip
            with self.subTest(status=status, message=message):
                found = [
                    server_tools.is_refusal(request, status, message, is_unknown=unknown) for unknown in (False, True)
                ]
                self.assertEqual([is_known, is_unknown], found)

    def test_a_forced_one_is_not_left_out(self) -> None:
        request = ChatRequest("m", "m", (), server_tools=(SEARCH,), server_choice={"type": "web_search"})
        self.assertFalse(server_tools.is_refusal(request, 400, "no such tool", is_unknown=True))
        self.assertTrue(server_tools.is_refusal(request, 404, "", is_unknown=False))


class TestItems(unittest.TestCase):
    def test_words_are_split_by_their_lengths_or_stay_in_one_place(self) -> None:
        for words, lengths, whole_at, places in (
            ("abcd", [1, 3], 0, ["a", "bcd"]), ("abcd", [0, 4, 0], 0, ["", "abcd", ""]),
            ("abcd", [1, 2], 0, ["abcd", ""]), ("abcd", [1, 2, 3], -1, ["", "", "abcd"]), ("", [], 0, []),
            ("", [0], -1, [""]),
        ):  # fmt: skip
            self.assertEqual(places, server_tools.split_text(words, lengths, whole_at=whole_at), (words, lengths))

    def test_a_history_is_told_apart_by_the_kinds_of_items_but_not_by_their_ids(self) -> None:
        def digest(*items: dict[str, str]) -> bytes:
            return digest_message(Message("assistant", "Found.", server_items=pack_items("x", items))).digest

        plain = digest_message(Message("assistant", "Found.")).digest
        search = {"type": "web_search_call", "id": "ws_1"}
        self.assertEqual(digest(search), digest({"type": "web_search_call"}, {"type": "text", "text": "Found."}))
        self.assertEqual(3, len({plain, digest(search), digest(search, search)}))


SEARCHES = [{"id": "ws_1", "results": [{"url": "u", "score": 0.7}]}]
USE: dict[str, Any] = {"type": "server_tool_use", "id": "1"}
TEXT = {"type": "text", "text": "It is sunny."}


def parse(fields: dict[str, Any]) -> Message:
    content = fields.get("content")
    text = server_tools.text_of(content) if isinstance(content, list) else content or ""
    return Message("assistant", text, server_items=server_tools.read_fields(fields))


class TestMessages(unittest.TestCase):
    def test_fields_come_and_go_unchanged(self) -> None:
        for fields in (
            {"searches": SEARCHES}, {"searches": SEARCHES, "citations": {"a": [1, 2.5, None, "日本\ud800"]}},
            {"content": [USE, TEXT]}, {"content": [TEXT, USE, TEXT], "searches": SEARCHES},
        ):  # fmt: skip
            with self.subTest(fields):
                message = parse({"role": "assistant", "content": "It is sunny.", **fields})
                self.assertEqual(fields, server_tools.fields_to_send(message))

    def test_nothing_is_read_of_a_plain_message(self) -> None:
        for fields in (
            {}, {"reasoning_content": "r", "tool_calls": [], "refusal": None, "annotations": []}, {"content": [TEXT]},
            {"content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use"}]},
            {"content": ["text", None, {"text": "a"}]},
        ):  # fmt: skip
            self.assertIsNone(server_tools.read_fields({"role": "assistant", "content": "x", **fields}), fields)

    def test_text_of_ours_before_the_answer_stays_behind(self) -> None:
        ours = {"type": "text", "text": "<details>thought"}
        end = {"type": "text", "text": "</details>\n\n"}
        for blocks in ([ours, end, USE, TEXT], [ours, USE, end, TEXT], [USE, TEXT]):
            with self.subTest(blocks):
                message = parse({"content": blocks})._replace(content=" It is sunny.\n")
                self.assertEqual({"content": [USE, TEXT]}, server_tools.fields_to_send(message))

    def test_blocks_with_another_text_than_the_message_are_not_sent(self) -> None:
        mixed = {"type": "text", "text": "</details>It is sunny."}
        for blocks, text in (([USE, TEXT], "It rains."), ([USE, mixed], "It is sunny."), ([USE], "much longer")):
            with self.subTest(blocks):
                message = parse({"content": blocks})._replace(content=text)
                self.assertEqual({}, server_tools.fields_to_send(message))


class TestAnswers(unittest.TestCase):
    def setUp(self) -> None:
        self.api = with_server_tools(CHAT)

    def stream(self, *deltas: dict[str, Any]) -> Reply:
        reader, reply = self.api.open_reader(), Reply()
        for at, delta in enumerate(deltas):
            finish = "stop" if at == len(deltas) - 1 else None
            chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            for item in reader.read(b"data: " + encode_json(chunk) + b"\n\n").batch:
                reply.add(item)  # type: ignore[arg-type]
        return reply

    def plain(self, message: dict[str, Any]) -> Reply:
        reply = Reply()
        for delta in self.api.read_answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}):
            reply.add(delta)
        return reply

    def test_an_answer_has_the_identity_of_its_echo_however_it_came(self) -> None:
        for fields in ({"searches": SEARCHES, "content": "It is sunny."}, {"content": [USE, TEXT]}):
            with self.subTest(fields):
                echo = digest_message(parse(fields)).digest
                pieces = [{name: value} for name, value in fields.items()]
                for reply in (self.plain(fields), self.stream(*pieces), self.stream({"searches": []}, *pieces, fields)):
                    message = reply.message()._replace(content="It is sunny.")
                    items = [each for each in unpack_items(message, "answer") if each["type"] != "text"]
                    self.assertEqual([{"type": "fields"}], items)
                    self.assertEqual(echo, digest_message(message).digest)

    def test_an_answer_without_fields_is_any_other(self) -> None:
        for reply in (self.plain({"content": "a", "annotations": []}), self.stream({"content": "a"}, {"content": "b"})):
            self.assertIsNone(reply.message().server_items)

    def test_damaged_blocks_break_nothing(self) -> None:
        for content in ([None], [1], [{"type": 5}], [[]], [{"type": "x", "text": 1}], {"type": "x"}):
            with self.subTest(content):
                self.assertTrue(self.stream({"content": content}, {"content": "a"}).is_finished)
                self.assertEqual("a", self.stream({"content": content}, {"content": "a"}).message().content)
