"""Searches that DeepSeek runs, with the official `anthropic` package: its types, its stream helper, its history."""

from typing import Any

import anthropic

from tests.fake_deepseek import Answer, Citation, Search
from tests.interop.command_line import MODEL
from tests.interop.typed import THOUGHT, Json
from tests.interop.typed_messages import LIMIT, TOOLS, MessagesCase, calls

SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
SEARCHES = (Search(("rain", "wet"), reasoning="Look. "), Search(("again",), text="Once more.", status="failed"))
CITATIONS = (Citation("https://example.com/0", "A", 0, 5), Citation("https://example.com/1", "B", 6, 9))
TURNS = (
    Answer(f"First.{THOUGHT}", "It rains.", searches=SEARCHES, citations=CITATIONS, piece=3),
    Answer(f"Second.{THOUGHT}", None, calls(("get_location", {}), turn=1), searches=SEARCHES[:1]),
    Answer(f"Third.{THOUGHT}", "There as well."),
)


class SearchTest(MessagesCase):
    """Everything that the package is answered is held against its types; see typed_messages."""

    def ask(
        self, sdk: anthropic.Anthropic, messages: list[Json], *, stream: bool, **options: Any
    ) -> anthropic.types.Message:
        request: Json = {
            "model": MODEL, "max_tokens": LIMIT, "messages": messages, "tools": (*TOOLS, SEARCH), **options,
        }  # fmt: skip
        if not stream:
            return sdk.messages.create(**request)
        with sdk.messages.stream(**request) as events:
            return events.get_final_message()

    def test_searches_and_sources_have_the_types_of_the_package(self) -> None:
        for stream in (False, True):
            with self.subTest(stream=stream):
                self.fake.answer(TURNS[0])
                message = self.ask(self.client(self.start_proxy()), [{"role": "user", "content": "?"}], stream=stream)
                kinds = [block.type for block in message.content]
                search = ["server_tool_use", "web_search_tool_result"]
                self.assertEqual(["thinking", *search, "text", *search, "thinking", "text"], kinds)
                use, found, last = message.content[1], message.content[2], message.content[-1]
                self.assertEqual({"query": "rain"}, use.input)
                self.assertEqual(
                    ["encrypted rain", "encrypted wet"], [each.encrypted_content for each in found.content]
                )
                self.assertEqual("unavailable", message.content[5].content.error_code)
                self.assertEqual([each.url for each in CITATIONS], [each.url for each in last.citations])
                self.assertEqual(1, message.usage.server_tool_use.web_search_requests)

    def test_a_chat_of_the_package_sends_every_block_back(self) -> None:
        for stream in (False, True):
            with self.subTest(stream=stream):
                self.fake.forget()
                self.fake.answer(*TURNS)
                sdk, messages = self.client(self.start_proxy()), list[Json]()
                for number in range(len(TURNS)):
                    results = [
                        each["id"]
                        for each in (messages[-1]["content"] if messages else ())
                        if each["type"] == "tool_use"
                    ]
                    said = [{"type": "tool_result", "tool_use_id": id, "content": "here"} for id in results]
                    messages.append({"role": "user", "content": said or f"Question {number}?"})
                    message = self.ask(sdk, messages, stream=stream)
                    messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
                self.assertEqual([None] * len(TURNS), [seen.refusal for seen in self.fake.seen])
                payload = self.fake.accepted[-1]["messages"]
                thoughts = [each["reasoning_content"] for each in payload if each["role"] == "assistant"]
                self.assertEqual([f"Look. First.{THOUGHT}", f"Look. Second.{THOUGHT}"], thoughts)
                for before, after in zip(self.fake.accepted, self.fake.accepted[1:], strict=False):
                    self.assertEqual(before["messages"], after["messages"][: len(before["messages"])])
