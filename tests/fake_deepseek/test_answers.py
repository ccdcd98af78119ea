"""How the fake answers: the bytes of each API, the context cache, the script, faults, and what it leaves behind."""

import json
from typing import Any

from tests.fake_deepseek import Answer, Call, Citation, Search
from tests.fake_deepseek.contract import MISSING_REASONING
from tests.fake_deepseek.test_refusals import OFF, TOOL, USER, FakeCase, Json, body, calls, result, says
from tests.support.harness import chat_chunks
from tests.support.messages_client import add_up_events
from tests.support.responses_client import events

CALLS = (Call("call_a", "look", '{"at":"sky"}'), Call("call_b", "look", "{}"))
MESSAGES, RESPONSES = "/anthropic/v1/messages", "/responses"


class TestChat(FakeCase):
    def test_an_answer_and_its_stream_say_all_that_the_model_said(self) -> None:
        text = "naïve 😀 </details>\n\ndata: x\r\n\u2028\x00"
        for answer, fields in ((Answer(text, "Look.", CALLS, piece=1), {}), (Answer(text, text), OFF), (Answer(), {})):
            self.fake.answer(answer, answer)
            choice = self.ask(body(tools=[TOOL], **fields))["choices"][0]
            *chunks, last = chat_chunks(self.send(body(tools=[TOOL], stream=True, **fields)).read())
            message, deltas = choice["message"], [chunk["choices"][0]["delta"] for chunk in chunks]
            thought = None if fields else answer.reasoning
            self.assertEqual((answer.content, thought), (message["content"], message.get("reasoning_content")))
            for name, said in (("content", answer.content), ("reasoning_content", thought)):
                self.assertEqual(said or "", "".join(delta.get(name) or "" for delta in deltas))
            made = [Call(each["id"], **each["function"]) for each in message.get("tool_calls", ())]
            self.assertEqual(list(answer.calls), made)
            ends = [choice["finish_reason"], last["choices"][0]["finish_reason"]]
            self.assertEqual(["tool_calls" if answer.calls else "stop"] * 2, ends)
            for field in ("id", "created", "model", "system_fingerprint", "object"):
                self.assertEqual(1, len({chunk[field] for chunk in [*chunks, last]}), field)

    def test_deltas_and_usage_are_in_the_places_and_the_order_of_deepseek(self) -> None:
        self.fake.answer(Answer("Think", "Text", CALLS[:1], piece=6, comments=2))
        data = self.send(body(tools=[TOOL], stream=True, stream_options={"include_usage": True})).read()
        self.assertTrue(data.startswith(b": keep-alive\n\n: keep-alive\n\ndata: {"))
        *chunks, last = chat_chunks(data)
        look = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "look", "arguments": ""}}
        pieces = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"at":', '"sky"}')]
        self.assertEqual(
            [
                {"role": "assistant", "content": None, "reasoning_content": ""},
                {"content": None, "reasoning_content": "Think"},
                {"content": "Text", "reasoning_content": None},
                *({"tool_calls": [each]} for each in (look, *pieces)),
                {"content": "", "reasoning_content": None},
            ],
            [chunk["choices"][0]["delta"] for chunk in [*chunks, last]],
        )
        usage = last["usage"]
        self.assertEqual({None}, {chunk["usage"] for chunk in chunks})
        self.assertEqual(usage["prompt_tokens"], usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"])
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertEqual({"reasoning_tokens": 2}, usage["completion_tokens_details"])
        self.fake.answer(Answer("Think", "Text"), Answer(content="Hi.", comments=3))
        *chunks, last = chat_chunks(self.send(body(stream=True, **OFF)).read())
        told = [chunk["choices"][0]["delta"] for chunk in [*chunks, last]]
        self.assertEqual([*({"role": "assistant", "content": text} for text in ("", "Text"))], told[:-1])
        self.assertEqual(({"role": None, "content": ""}, False), (told[-1], any("usage" in each for each in chunks)))
        self.assertTrue(self.send(body()).read().startswith(b'\n\n\n{"object"'))

    def test_a_prompt_costs_less_as_far_as_it_begins_like_one_before(self) -> None:
        tools, answer = [TOOL], says("Hello.", "Hmm.")
        reordered = dict(reversed(answer.items()))
        history, changed = (USER, answer, USER), (USER, says("Hello.", "Hm."), USER)
        loop = (USER, calls("a", "b"), result("a"), result("b"))
        spelled = [{**each, "function": {"name": "look", "arguments": "{ }"}} for each in loop[1]["tool_calls"]]
        prompt = self.hit(body(tools=tools), body(tools=tools))
        whole = self.hit(body(tools=tools), body(*history, tools=tools))
        self.assertTrue(0 < prompt < whole)
        for first, second, hit in (
            (body(tools=tools), body(USER, {**reordered, "tool_calls": []}, USER, tools=tools), whole),
            (body(tools=tools), body(tools=tools, tool_choice="none"), prompt),
            (body(tools=tools), body(*changed, tools=tools), prompt),
            *((body(tools=tools), body(**{"tools": tools, **fields}), 0) for fields in (
                {"tools": [{"type": "function", "function": {"name": "listen"}}, TOOL]}, {"tools": []},
                {"user_id": "x"}, {"model": "deepseek-flash"}, {"reasoning_effort": "max"},
            )),
            # Results are read in the order of their calls, and values of arguments whatever their spelling.
            (body(*loop), body(USER, {**loop[1], "tool_calls": spelled}, loop[3], loop[2]), None),
            # Without tools the reasoning before the last question is no part of a prompt.
            (body(*history), body(*changed), None),
        ):  # fmt: skip
            self.assertEqual(self.hit(first, first) if hit is None else hit, self.hit(first, second), second)

    def hit(self, first: Json, second: Json) -> int:
        self.use(responder=lambda payload: Answer("Hmm.", "Hello."))
        self.ask(first)
        return int(self.ask(second)["usage"]["prompt_cache_hit_tokens"])


class TestOtherApis(FakeCase):
    SEARCHES = (Search(("rain", "wet"), reasoning="Where? "), Search(text="I read.", status="failed", has_id=False))
    ANSWER = Answer("So.", "It rains.", CALLS[:1], searches=SEARCHES, citations=(Citation("https://a", "A", 0, 3),))

    def asked(self, path: str, *items: Any, **fields: Any) -> Json:
        field, kind = ("input", "web_search") if path == RESPONSES else ("messages", "web_search_20250305")
        look = {
            "name": "look",
            **({"type": "function"} if path == RESPONSES else {"input_schema": TOOL["function"]["parameters"]}),
        }
        tools = [{"type": kind, "name": "web_search"}, look]
        return {"model": "deepseek-flash", "max_tokens": 99, field: [USER, *items], "tools": tools, **fields}

    def both(self, path: str, answer: Answer) -> tuple[Json, list[Json]]:
        self.fake.answer(answer, answer)
        return self.ask(self.asked(path), path), events(self.send(self.asked(path, stream=True), path).read())

    def test_responses(self) -> None:
        whole, told = self.both(RESPONSES, self.ANSWER)
        output = told[-1]["response"]["output"]
        kinds = ["reasoning", "web_search_call", "message", "web_search_call", "reasoning", "message", "function_call"]
        for items in (whole["output"], output):
            self.assertEqual(kinds, [item["type"] for item in items])
            self.assertEqual(["https://a"], [each["url"] for each in items[-2]["content"][0]["annotations"]])
        self.assertEqual(list(range(len(told))), [event["sequence_number"] for event in told])
        self.assertEqual(output, [event["item"] for event in told if event["type"] == "response.output_item.done"])
        for kind, text in (("reasoning_text", "Where? So."), ("output_text", "I read.It rains.")):
            said = [event["delta"] for event in told if event["type"] == f"response.{kind}.delta"]
            self.assertEqual(text, "".join(said))
        self.assertEqual(4, sum(".web_search_call." in event["type"] for event in told))
        # It is in the cache when it comes back, with ids and without, and not in another order.
        back = {"type": "function_call_output", "call_id": "call_a", "output": "blue"}
        bare = [{name: value for name, value in item.items() if name != "id"} for item in output]
        histories = (output, bare, [bare[1], bare[0], *bare[2:]])
        usages = [self.ask(self.asked(RESPONSES, *items, back), RESPONSES)["usage"] for items in histories]
        hits = [each["input_tokens_details"]["cached_tokens"] > each["input_tokens"] // 2 for each in usages]
        self.assertEqual([True, True, False], hits)

    def test_messages(self) -> None:
        whole, told = self.both(MESSAGES, self.ANSWER)
        search = ["server_tool_use", "web_search_tool_result"]
        kinds = ["thinking", *search, "text", *search, "thinking", "text", "tool_use"]
        self.assertEqual((kinds, "tool_use"), ([each["type"] for each in whole["content"]], whole["stop_reason"]))
        self.assertEqual({"web_search_requests": 1}, whole["usage"]["server_tool_use"])
        self.assertEqual("unavailable", whole["content"][5]["content"]["error_code"])
        self.assertEqual(["https://a"], [each["url"] for each in whole["content"][-2]["citations"]])
        own = ("signature", "id", "tool_use_id")
        said, streamed = (
            [{name: value for name, value in block.items() if name not in own} for block in message["content"]]
            for message in (whole, add_up_events(told))
        )
        self.assertEqual((said, "ping"), (streamed, told[1]["type"]))
        back = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_a", "content": "blue"}]}
        again = self.asked(MESSAGES, {"role": "assistant", "content": whole["content"]}, back)
        self.assertGreater(self.ask(again, MESSAGES)["usage"]["cache_read_input_tokens"], 100)

    def test_ends_are_told_in_the_words_of_each_api(self) -> None:
        for finish, status, reason in (
            ("length", "incomplete", "max_tokens"),
            ("content_filter", "incomplete", "refusal"),
            ("aborted", "failed", None),
        ):
            last = self.both(RESPONSES, Answer(content="Hi", finish_reason=finish))[1][-1]
            self.assertEqual((f"response.{status}", status), (last["type"], last["response"]["status"]))
            told = self.both(MESSAGES, Answer(content="Hi", finish_reason=finish))[1]
            self.assertEqual("message_stop" if reason else "error", told[-1]["type"])
            self.assertEqual(reason, told[-2].get("delta", {}).get("stop_reason"))


class TestScript(FakeCase):
    def test_a_refusal_has_deepseeks_envelope_and_spends_no_answer(self) -> None:
        self.fake.answer(Answer(content="Kept."))
        kind, wrong = "invalid_request_error", body(USER, says(thought=None), USER, tools=[TOOL])
        error = {"message": MISSING_REASONING, "type": kind, "param": None, "code": kind}
        self.assertEqual({"error": error}, self.ask(wrong))
        self.assertEqual("Kept.", self.ask(body())["choices"][0]["message"]["content"])
        self.assertEqual(
            [(400, MISSING_REASONING), (200, None)], [(each.status, each.refusal) for each in self.fake.seen]
        )
        self.assertEqual([wrong, body()], [json.loads(each.body) for each in self.fake.seen])
        self.assertEqual(([body()], 1), (self.fake.accepted, self.fake.connections))

    def test_keys_and_paths(self) -> None:
        self.use(keys={"sk-good"})
        good = {"Authorization": "Bearer sk-good"}
        for path, headers, status in (
            ("/chat/completions", good, 200), ("/v1/chat/completions?x=1", good, 200), ("/v2/chat", good, 404),
            ("/anthropic/v2/messages", good, 404), ("/chat/completions", {"Authorization": "Basic sk-good"}, 401),
            ("/chat/completions", {"X-Api-Key": "sk-good"}, 401), (MESSAGES, {"X-Api-Key": "sk-good"}, 200),
            (MESSAGES, {"X-Api-Key": "sk-bad"}, 401),
        ):  # fmt: skip
            reply = self.send(body(), path, **headers)
            self.assertEqual(status, reply.status, reply.read())
        error = self.ask(body(), Authorization="Bearer sk-bad-0000")["error"]
        self.assertEqual("Authentication Fails, Your api key: ****0000 is invalid", error["message"])
        self.assertEqual(("authentication_error", "invalid_request_error"), (error["type"], error["code"]))
