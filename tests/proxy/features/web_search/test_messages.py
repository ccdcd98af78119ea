"""Searches that DeepSeek runs itself, in the Messages API: the client sees its blocks, and sends them back unchanged.

client      web_search_20250305 among the tools, or a history with such blocks
upstream    /anthropic/v1/messages; every other request goes to chat completions
"""

import json
from typing import Any

from tests.fake_deepseek import Answer, BlockAnswer, Call, Citation, Failure, Search
from tests.fake_deepseek.messages_contract import MISSING_THINKING
from tests.support.features import needs
from tests.support.harness import RunningProxy
from tests.support.messages_client import (
    TOOLS,
    Json,
    MessagesTestCase,
    assistant,
    events,
    kinds,
    result,
    user,
    without_ids,
)

OWN = "/anthropic/v1/messages"
CHAT = "/chat/completions"
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
CITATION = Citation("https://example.com/0", "A", 0, 5)
SEARCHED = Answer(
    "So it is.",
    "It rains.",
    searches=(Search(("weather",), reasoning="Look. "), Search(("rain", "wet"), reasoning="And? ", text="Once more.")),
    citations=(CITATION,),
)
SEARCH_KINDS = ["server_tool_use", "web_search_tool_result"]
ALL_KINDS = ["thinking", *SEARCH_KINDS, "thinking", "text", *SEARCH_KINDS, "thinking", "text"]
USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "x", "page_age": None}
RESULT = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]}
CALL = Call("call_00_abcdefghijklmnopqrstuvwx", "read_file", '{"path": "a.py"}')


def without_thinking(message: Json) -> Json:
    return {"role": "assistant", "content": [block for block in message["content"] if block["type"] != "thinking"]}


@needs("messages")
class SearchTestCase(MessagesTestCase):
    def bodies(self) -> list[Json]:
        return [json.loads(seen.body) for seen in self.fake.seen]

    def paths(self) -> list[str]:
        return [seen.path for seen in self.fake.seen]

    def search(self, proxy: RunningProxy, *messages: Json, **body: Any) -> Json:
        message = self.complete(proxy, *messages, **{"tools": [SEARCH], **body})
        self.assertEqual([], self.fake.refused)
        return message


class TestBlocks(SearchTestCase):
    def test_the_client_gets_the_blocks_of_a_search_streamed_and_plain(self) -> None:
        replies = []
        for stream in (True, False):
            self.fake.answer(SEARCHED)
            message = self.search(self.proxy(), stream=stream)
            self.assertEqual(ALL_KINDS, kinds(message))
            self.assertEqual({"query": "weather"}, message["content"][1]["input"])
            self.assertEqual("encrypted weather", message["content"][2]["content"][0]["encrypted_content"])
            self.assertEqual(["https://example.com/0"], [each["url"] for each in message["content"][8]["citations"]])
            counted = {"web_search_requests": 2, "web_fetch_requests": 0}
            self.assertEqual(counted, message["usage"]["server_tool_use"])
            self.assertEqual("end_turn", message["stop_reason"])
            for block in message["content"]:
                for name in ("id", "tool_use_id", "signature"):
                    block.pop(name, None)
            replies.append(without_ids(message))
        self.assertEqual(*replies)
        self.assertEqual([OWN, OWN], self.paths())

    def test_a_client_without_thinking_gets_the_search_without_thoughts(self) -> None:
        for stream in (True, False):
            self.fake.answer(SEARCHED)
            message = self.search(self.proxy(), stream=stream, thinking=None)
            self.assertEqual([*SEARCH_KINDS, "text", *SEARCH_KINDS, "text"], kinds(message))

    def test_a_paused_turn_is_sent_back_and_continues(self) -> None:
        for stream in (True, False):
            proxy = self.proxy()
            thought = {"type": "thinking", "thinking": "Hm."}
            self.fake.answer(BlockAnswer(blocks=(thought, USE), finish_reason="pause_turn"))
            first = self.search(proxy, stream=stream)
            self.assertEqual("pause_turn", first["stop_reason"])
            self.fake.answer(BlockAnswer(blocks=(RESULT, {"type": "text", "text": "Done."})))
            last = self.search(proxy, user("q"), assistant(first), stream=stream)
            self.assertEqual([thought, USE], self.bodies()[-1]["messages"][-1]["content"])
            self.assertEqual("Done.", last["content"][-1]["text"])
            self.search(proxy, user("q"), assistant(first), assistant(last), user("and?"), stream=stream)
            sent = self.bodies()[-1]["messages"][1]["content"]
            self.assertEqual([USE, RESULT], [block for block in sent if block["type"] not in ("thinking", "text")])


class TestChats(SearchTestCase):
    def test_a_chat_that_has_searched_continues_without_the_tool(self) -> None:
        proxy = self.proxy()
        self.fake.answer(SEARCHED)
        first = self.search(proxy)
        self.search(proxy, user("q"), assistant(first), user("go on"), tools=TOOLS)
        self.assertEqual([OWN, OWN], self.paths())
        self.assertEqual(ALL_KINDS, kinds(self.bodies()[-1]["messages"][1]))

    def test_a_client_that_sends_no_blocks_back_continues_with_chat_completions(self) -> None:
        proxy = self.proxy()
        self.fake.answer(SEARCHED)
        self.search(proxy)
        said = {"role": "assistant", "content": [{"type": "text", "text": "Once more.It rains."}]}
        self.search(proxy, user("q"), said, user("go on"), tools=TOOLS)
        self.assertEqual([OWN, CHAT], self.paths())
        self.assertEqual("Look. And? So it is.", self.sent()[1]["reasoning_content"])

    def test_all_of_a_history_is_translated(self) -> None:
        proxy = self.proxy(missing_reasoning_strategy="placeholder")
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
        use = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a"}}
        turn = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, use]}
        said = {"role": "assistant", "content": [USE, RESULT, {"type": "text", "text": "x", "citations": []}]}
        self.search(
            proxy, user(picture, {"type": "text", "text": "q"}), turn,
            user(result("toolu_1", "42"), {"type": "text", "text": "go on"}),
            {"role": "system", "content": "Mind the gap."}, said, user("and?"), system="Be brief.",
            tools=[*TOOLS, SEARCH], stop_sequences=["END"], metadata={"user_id": "me"},
            output_config={"effort": "max"}, temperature=0.5, model="deepseek-flash",
        )  # fmt: skip
        sent = self.bodies()[-1]
        self.assertEqual("Be brief.", sent["system"])
        self.assertEqual(["user", "assistant"] * 2 + ["user"], [each["role"] for each in sent["messages"]])
        self.assertEqual([picture, {"type": "text", "text": "q"}], sent["messages"][0]["content"])
        self.assertEqual(turn["content"], sent["messages"][1]["content"])
        results = ["tool_result", "text", "text"]
        self.assertEqual(
            (results, "Mind the gap."), (kinds(sent["messages"][2]), sent["messages"][2]["content"][2]["text"])
        )
        self.assertEqual(
            [" ", USE, RESULT], [each.get("thinking", each) for each in sent["messages"][3]["content"]][:3]
        )
        rest = {name: sent[name] for name in ("stop_sequences", "metadata", "output_config", "temperature", "stream")}
        self.assertEqual(
            {
                "stop_sequences": ["END"],
                "metadata": {"user_id": "me"},
                "output_config": {"effort": "max"},
                "temperature": 0.5,
                "stream": True,
            },
            rest,
        )
        self.assertEqual(["read_file", "web_search"], [tool["name"] for tool in sent["tools"]])

    def test_two_callers_share_no_search(self) -> None:
        proxy = self.proxy()
        self.fake.answer(SEARCHED, SEARCHED)
        first = self.search(proxy)
        self.search(proxy, key="sk-other")
        self.search(proxy, user("q"), without_thinking(first), user("go on"), key="sk-third")
        self.assertNotIn("Look.", json.dumps(self.bodies()[-1]))


class TestChoice(SearchTestCase):
    def test_a_forced_search_turns_thinking_off(self) -> None:
        for choice in ({"type": "tool", "name": "web_search"}, {"type": "any"}):
            for stream in (True, False):
                self.fake.answer(SEARCHED)
                message = self.search(self.proxy(), tool_choice=choice, stream=stream)
                self.assertEqual([*SEARCH_KINDS, "text", *SEARCH_KINDS, "text"], kinds(message))
                sent = self.bodies()[-1]
                self.assertEqual((choice, {"type": "disabled"}), (sent["tool_choice"], sent["thinking"]))
                self.assertNotIn("output_config", sent)


class TestFaults(SearchTestCase):
    def test_a_search_that_breaks_off_ends_in_an_error_and_the_chat_continues(self) -> None:
        # message_start, ping, and the events of the thought and of the search.
        for cut in range(1, 16):
            with self.subTest(cut):
                self.fake.forget()
                proxy = self.proxy()
                self.fake.answer(Answer("Hm.", "It rains.", searches=(Search(reasoning="Look. "),), cut_after=cut))
                reply = self.create(proxy, tools=[SEARCH], stream=True)
                found = events(reply.body)
                self.assertEqual("error", found[-1]["type"])
                opened = [event["index"] for event in found if event["type"] == "content_block_start"]
                closed = [event["index"] for event in found if event["type"] == "content_block_stop"]
                self.assertEqual(opened, closed)
                begun = [event["content_block"] for event in found if event["type"] == "content_block_start"]
                echo = [block for block in begun if block["type"] not in ("thinking", "text")]
                if echo:
                    self.search(proxy, user("q"), {"role": "assistant", "content": echo}, user("go on"))

    def test_lost_thinking_is_replaced_by_a_filler_or_told_as_a_transcript(self) -> None:
        said = {"role": "assistant", "content": [USE, RESULT, {"type": "text", "text": "Found."}]}
        self.search(self.proxy(), user("q"), said, user("go on"))
        self.assertEqual({"type": "thinking", "thinking": " "}, self.bodies()[-1]["messages"][1]["content"][0])
        use = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {}}
        lost = {"role": "assistant", "content": [USE, RESULT, use]}
        first = self.search(self.proxy(), user("q"), lost, user(result("toolu_1")), tools=[*TOOLS, SEARCH])
        self.assertNotIn("tool_use", json.dumps(self.bodies()[-1]["messages"]))
        self.search(self.proxy(), user("q"), lost, user(result("toolu_1")), assistant(first), user("and?"))

    def test_a_refusal_of_the_thinking_is_answered_with_a_transcript(self) -> None:
        said = {"role": "assistant", "content": [USE, RESULT, {"type": "text", "text": "Found."}]}
        self.fake.answer(Failure(400, MISSING_THINKING, "invalid_request_error", "invalid_request_error"), SEARCHED)
        message = self.complete(self.proxy(), user("q"), said, user("go on"), tools=[SEARCH])
        self.assertEqual(ALL_KINDS, kinds(message))
        self.assertEqual([OWN, OWN], self.paths())
        self.assertIn("Found.", self.bodies()[-1]["system"])

    def test_a_notice_of_ours_is_no_part_of_the_turn(self) -> None:
        proxy = self.proxy()
        use = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {}}
        lost = [user("q"), {"role": "assistant", "content": [use]}, user(result("toolu_1"))]
        self.fake.answer(SEARCHED)
        first = self.search(proxy, *lost, tools=[*TOOLS, SEARCH])
        texts = [block["text"] for block in first["content"] if block["type"] == "text"]
        self.assertNotIn("Once more.It rains.", "".join(texts)[:10])
        self.search(proxy, *lost, assistant(first), user("and?"), tools=[*TOOLS, SEARCH])
        sent = self.bodies()[-1]["messages"][-2]["content"]
        self.assertEqual(["Once more.", "It rains."], [each["text"] for each in sent if each["type"] == "text"])
