"""Requests in the fields of DeepSeek's Messages API."""

import random
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Message, pack_items
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.features.web_search.messages_api import MESSAGES, payload
from tests.support.histories import TOOLS, assistant, result, system, user
from tests.unit.deepseek.apis.test_api import IMAGES, upstream_view
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
    def test_blocks_go_back_in_their_places(self) -> None:
        cited = text("Hi.", citations=[{"url": "u"}])
        for items, expected in (
            ((USE, FOUND, text("Hi.")), (thought("abcde"), USE, FOUND, text("Hi."))),
            ((thinking(3), USE, FOUND, thinking(2), cited), (thought("abc"), USE, FOUND, thought("de"), cited)),
            ((thinking(3), USE, FOUND, text("Hi.")), (thought("abcde"), USE, FOUND, text("Hi."))),
            ((USE, FOUND, thinking(9), text("Hi.")), (thought("abcde"), USE, FOUND, text("Hi."))),
            ((text("H"), USE, FOUND, thinking(5), text("i.")), (text("H"), USE, FOUND, thought("abcde"), text("i."))),
        ):
            with self.subTest(items):
                self.assertEqual(list(expected), sent_blocks(turn(*items, text="Hi.", reasoning="abcde")))

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
                "model": "deepseek-flash",
                "max_tokens": 5,
                "system": "s",
                "messages": [{"role": "user", "content": [text("u")]}],
                "thinking": {"type": "enabled"},
                "output_config": {"effort": "max"},
                "tools": [{"name": "read_file", "input_schema": schema}],
                "stream": True,
                "temperature": 0.5,
                "top_p": 0.9,
                "stop_sequences": ["x"],
                "metadata": {"user_id": "me"},
            },
            body,
        )

    def test_there_is_always_a_limit(self) -> None:
        for fields, limit in (({}, 65_536), ({"effort": "max"}, 131_072), ({"thinking": False}, 8192)):
            self.assertEqual(limit, payload(request(user("u"), **fields))["max_tokens"])

    def test_choices_have_their_names_in_messages(self) -> None:
        named = {"type": "function", "function": {"name": "read_file"}}
        for choice, expected in (
            ("auto", {"type": "auto"}),
            ("none", {"type": "none"}),
            ("required", {"type": "any"}),
            (named, {"type": "tool", "name": "read_file"}),
        ):
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

    def test_pictures_that_tools_returned_follow_the_results(self) -> None:
        first, _, last = payload(request(*IMAGES))["messages"]
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        self.assertEqual([picture], first["content"])
        result, lead, *rest = last["content"]
        self.assertEqual("tool_result", result["type"])
        self.assertIn("pictures that tools returned", lead["text"])
        self.assertEqual([picture, text("So?")], rest)

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
