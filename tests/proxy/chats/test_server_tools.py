"""Tools that DeepSeek runs itself, on chat completions: the fields it adds for them reach the client and come back."""

import json
from typing import Any

from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw
from tests.fake_deepseek.web_tools import ASSUMED, ASSUMED_BLOCKS
from tests.support.harness import RawReply, RunningProxy, SocketTestCase
from tests.support.histories import TOOLS, tool_calls
from tests.support.raw_streams import EVENT_STREAM, streamed

SEARCH = {"type": "deepseek_web_search", "name": "deepseek_web_search"}
READ = {"type": "deepseek_read_url", "name": "deepseek_read_url"}
FLASH = "deepseek-flash"
QUESTION = {"role": "user", "content": "Is it sunny?"}
NEXT = {"role": "user", "content": "And tomorrow?"}
FIELDS = {name: json.loads(text) for name, text in ASSUMED}
BLOCKS = json.loads(ASSUMED_BLOCKS[0][1])
SEARCHED = Answer(reasoning="I must look.", content="It is sunny.", fields=ASSUMED, piece=4)
CALL = Call("call_00_abcdefghijklmnop123456", "read_file", '{"path":"a.py"}')


class ServerToolTestCase(SocketTestCase):
    def chat(self, proxy: RunningProxy, *history: dict[str, Any], **body: Any) -> RawReply:
        return super().chat(proxy, *history, **{"model": FLASH, **body})


def echo(reply: RawReply) -> dict[str, Any]:
    """The assistant's message as a client sends it back, without the reasoning."""
    if not reply.is_stream:
        message = dict(reply.value["choices"][0]["message"])
    else:
        deltas = [choice["delta"] for chunk in reply.chunks for choice in chunk["choices"]]
        message = {name: value for delta in deltas for name, value in delta.items() if name != "tool_calls"}
        message |= {
            "role": "assistant",
            "content": _join([delta["content"] for delta in deltas if delta.get("content")]),
        }
    message.pop("reasoning_content", None)
    return message


def _join(contents: list[Any]) -> Any:
    """Text, or a list of blocks if any was among it."""
    if all(isinstance(each, str) for each in contents):
        return "".join(contents)
    blocks = ([{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents)
    return [block for each in blocks for block in each]


class TestChatCompletions(ServerToolTestCase):
    def test_the_fields_reach_the_client_and_go_back_unchanged(self) -> None:
        for stream in (False, True):
            for display in ("off", "on"):
                with self.subTest(stream=stream, display=display):
                    self.fake.forget()
                    proxy = self.proxy(display_reasoning=display)
                    settings: dict[str, Any] = {"tools": [*TOOLS, SEARCH, READ], "stream": stream}
                    self.fake.answer(SEARCHED)
                    first = self.chat(proxy, QUESTION, **settings)
                    turn = echo(first)
                    self.assertEqual(FIELDS, {name: turn[name] for name in FIELDS})
                    self.chat(proxy, QUESTION, turn, NEXT, **settings)
                    self.assertEqual([], self.fake.refused)
                    sent = self.sent_body()["messages"][1]
                    self.assertEqual(
                        {"role": "assistant", "content": "It is sunny.", "reasoning_content": "I must look.", **FIELDS},
                        sent,
                    )
                    self.assertEqual(
                        [SEARCH, READ], sorted(self.sent_body()["tools"][len(TOOLS) :], key=str, reverse=True)
                    )
                    # The prefix ends with the answer: DeepSeek has the whole turn in its cache.
                    payload = self.fake.accepted[-1]
                    hit = self.fake.cache.read({**payload, "messages": payload["messages"][:2]}).hit
                    self.assertEqual(hit, self.fake.cache.read({**payload, "messages": payload["messages"][:2]}).tokens)

    def test_content_of_blocks_reaches_the_client_and_goes_back_unchanged(self) -> None:
        for stream in (False, True):
            for display in ("off", "on"):
                with self.subTest(stream=stream, display=display):
                    self.fake.forget()
                    proxy = self.proxy(display_reasoning=display)
                    self.fake.answer(Answer(reasoning="I must look.", fields=ASSUMED_BLOCKS))
                    first = self.chat(proxy, QUESTION, tools=[SEARCH], stream=stream)
                    turn = echo(first)
                    content = turn["content"] if isinstance(turn["content"], list) else []
                    self.assertEqual(BLOCKS, [block for block in content if block in BLOCKS], turn)
                    self.chat(proxy, QUESTION, turn, NEXT, tools=[SEARCH], stream=stream)
                    self.assertEqual([], self.fake.refused)
                    self.assertEqual(
                        {"role": "assistant", "content": BLOCKS, "reasoning_content": "I must look."},
                        self.sent_body()["messages"][1],
                    )

    def test_a_client_that_drops_the_fields_has_its_turn_restored(self) -> None:
        self.fake.answer(SEARCHED)
        turn = echo(self.chat(self.running, QUESTION, tools=[SEARCH]))
        bare = {name: value for name, value in turn.items() if name in ("role", "content")}
        for tools in ([SEARCH], []):
            with self.subTest(tools=tools):
                self.chat(self.running, QUESTION, bare, NEXT, tools=tools, stream=False)
                self.assertEqual([], self.fake.refused)
        self.assertEqual("I must look.", self.sent_body(1)["messages"][1]["reasoning_content"])

    def test_a_request_without_such_a_tool_sends_no_field_of_them(self) -> None:
        self.fake.answer(SEARCHED)
        turn = echo(self.chat(self.running, QUESTION, tools=[SEARCH]))
        self.chat(self.running, QUESTION, turn, NEXT, tools=TOOLS)
        self.assertEqual([], self.fake.refused)
        self.assertEqual(
            {"role": "assistant", "content": "It is sunny.", "reasoning_content": "I must look."},
            self.sent_body()["messages"][1],
        )

    def test_fields_of_clients_are_none_of_deepseeks(self) -> None:
        turn: dict[str, Any] = {
            "role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None, "id": "m1",
        }  # fmt: skip
        self.chat(self.running, QUESTION, turn, NEXT, tools=[SEARCH])
        self.assertEqual({"role", "content", "reasoning_content"}, self.sent_body()["messages"][1].keys())

    def test_a_search_and_a_call_share_a_turn(self) -> None:
        for stream in (False, True):
            with self.subTest(stream=stream):
                self.fake.forget()
                self.fake.answer(Answer(reasoning="Both.", content="a", calls=(CALL,), fields=ASSUMED))
                reply = self.chat(self.running, QUESTION, tools=[*TOOLS, SEARCH], stream=stream)
                turn = {**echo(reply), "tool_calls": tool_calls([CALL])}
                result = {"role": "tool", "tool_call_id": CALL.id, "content": "ok"}
                self.chat(self.running, QUESTION, turn, result, tools=[*TOOLS, SEARCH], stream=stream)
                self.assertEqual([], self.fake.refused)
                sent = self.sent_body()["messages"][1]
                self.assertEqual(("Both.", FIELDS), (sent["reasoning_content"], {name: sent[name] for name in FIELDS}))

    def test_fields_in_every_chunk_of_a_text_stay_in_every_chunk(self) -> None:
        chunks = [{"content": text, "citations": [{"url": "u"}]} for text in ("a", "b", "c", "d")]
        self.fake.answer(streamed(*chunks, {"content": "", "search_status": {"count": 2}}))
        reply = self.chat(self.running, QUESTION, tools=[SEARCH], stream=True)
        deltas = [choice["delta"] for chunk in reply.chunks for choice in chunk["choices"]]
        self.assertEqual([{"url": "u"}] * 4, [delta["citations"][0] for delta in deltas if "citations" in delta])
        self.assertEqual([{"count": 2}], [delta["search_status"] for delta in deltas if "search_status" in delta])

    def test_a_search_can_be_forced(self) -> None:
        choice = {"type": "deepseek_web_search"}
        self.fake.answer(SEARCHED)
        self.chat(self.running, QUESTION, tools=[*TOOLS, SEARCH], tool_choice=choice)
        self.assertEqual(choice, self.sent_body()["tool_choice"])
        self.assertEqual([], self.fake.refused)

    def test_a_search_that_comes_or_goes_is_named_as_a_divergence(self) -> None:
        history = QUESTION, {"role": "assistant", "content": "Hello."}, NEXT
        self.chat(self.running, *history, tools=[*TOOLS, SEARCH])
        with self.assertLogs("deepseek_cursor_proxy.observers.console") as log:
            self.chat(self.running, *history, tools=TOOLS)
            self.chat(self.running, *history, tools=[SEARCH, *TOOLS])
        lines = [line for line in log.output if "prefix lost" in line]
        self.assertEqual(2, len(lines), log.output)
        self.assertIn("tools changed (removed deepseek_web_search)", lines[0])
        self.assertIn("tools changed (added deepseek_web_search)", lines[1])


class TestOtherUpstreams(ServerToolTestCase):
    def test_a_host_that_is_not_deepseek_gets_none(self) -> None:
        self.fake = self.enterContext(FakeDeepSeek(host="sglang"))
        proxy = self.proxy(upstream_host="sglang", upstream_model="a/deepseek-flash")
        turn = {"role": "assistant", "content": "It is sunny.", **FIELDS}
        reply = self.round_trip(proxy, {"messages": [QUESTION, turn, NEXT], "tools": [*TOOLS, SEARCH]})
        self.assertEqual(200, reply.status, reply.body)
        self.assertEqual(1, len(self.fake.seen))
        self.assertEqual(len(TOOLS), len(self.sent_body()["tools"]))
        self.assertEqual({"role", "content"}, self.sent_body()["messages"][1].keys())

    def test_a_model_of_deepseek_that_has_none_is_asked_without(self) -> None:
        proxy = self.proxy(upstream_host="deepseek")
        for _ in range(2):
            reply = self.round_trip(proxy, {"model": "deepseek-v4-pro", "messages": [QUESTION], "tools": [SEARCH]})
            self.assertEqual(200, reply.status, reply.body)
            self.chat(proxy, QUESTION, tools=[SEARCH])
        self.assertEqual([400, 200, 200] * 2, [each.status for each in self.fake.seen])
        self.assertIn("tools", self.sent_body())

    def test_a_refusal_for_another_reason_stays_one(self) -> None:
        for failure in (Failure(401, "no key"), Failure(402, "no money"), Failure(400, "temperature is odd")):
            with self.subTest(failure.status):
                self.fake.forget()
                self.fake.answer(failure)
                proxy = self.proxy(upstream_host="deepseek")
                reply = self.round_trip(proxy, {"model": FLASH, "messages": [QUESTION], "tools": [SEARCH]})
                self.assertEqual((failure.status, 1), (reply.status, len(self.fake.seen)))

    def test_a_refusal_that_has_nothing_to_do_with_them_is_not_remembered(self) -> None:
        self.fake.answer(Failure(400, "odd"), Failure(400, "odd"))
        reply = self.round_trip(self.running, {"model": FLASH, "messages": [QUESTION], "tools": [SEARCH]})
        self.assertEqual(400, reply.status)
        self.chat(self.running, QUESTION, tools=[SEARCH])
        self.assertEqual([SEARCH], self.sent_body()["tools"])

    def test_an_error_that_passes_by_itself_is_not_remembered(self) -> None:
        proxy = self.proxy(retry_budget=0.0)
        self.fake.answer(Failure(500, "odd"))
        self.chat(proxy, QUESTION, tools=[SEARCH])
        self.assertNotIn("tools", self.sent_body())
        self.chat(proxy, QUESTION, tools=[SEARCH])
        self.assertEqual([SEARCH], self.sent_body()["tools"])

    def test_an_unknown_one_that_answers_with_a_page_is_asked_without(self) -> None:
        page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
        self.fake.answer(Raw(page))
        self.chat(self.running, QUESTION, tools=[SEARCH], stream=True)
        self.assertNotIn("tools", self.sent_body())

    def test_a_refusal_inside_the_stream_is_asked_without(self) -> None:
        self.fake.answer(Raw(EVENT_STREAM + b'data: {"error":{"message":"unknown tool type"}}\n\n'))
        reply = self.chat(self.running, QUESTION, tools=[SEARCH], stream=True)
        self.assertEqual("Hello.", reply.text[-6:])
        self.assertNotIn("tools", self.sent_body())
        # It may have been a tool that failed.
        self.chat(self.running, QUESTION, tools=[SEARCH])
        self.assertEqual([SEARCH], self.sent_body()["tools"])

    def test_a_search_that_fails_at_deepseek_is_an_error_of_the_answer(self) -> None:
        self.fake.answer(Raw(EVENT_STREAM + b'data: {"error":{"message":"the search tool failed"}}\n\n'))
        proxy = self.proxy(upstream_host="deepseek", retry_budget=0.0)
        reply = self.chat(proxy, QUESTION, tools=[SEARCH], stream=True)
        self.assertIn(b"the search tool failed", reply.body)
        self.assertEqual(1, len(self.fake.seen))

    def test_a_forced_search_of_several_answers_is_refused_once(self) -> None:
        proxy = self.proxy(upstream_host="sglang")
        forced = {"tools": [SEARCH], "tool_choice": {"type": SEARCH["type"]}, "n": 2}
        reply = self.round_trip(proxy, {"messages": [QUESTION], **forced})
        self.assertEqual((400, []), (reply.status, self.fake.seen))
