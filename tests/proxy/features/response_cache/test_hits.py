"""The response cache over real sockets: what is a hit, on which API and in which form, and what is none."""

import io
import json
import logging
import os
from dataclasses import replace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call, Failure, Raw, Search, web_tools
from tests.support.admin_client import AdminCase
from tests.support.apis import APIS, CHAT, RESPONSES, Api, ApiReply, ApiTestCase, Json, each_api
from tests.support.databases import age_rows
from tests.support.features import needs
from tests.support.harness import PATIENCE, RunningProxy, read_next_reply, read_until
from tests.support.polling import wait_until
from tests.support.width import some

CONSOLE = "deepseek_cursor_proxy.observers.console"
CALL = Call("call_1", "read_file", '{"path": "a"}')
ANSWER = Answer(reasoning="A thought " * 4, content="The answer.", calls=(CALL,), comments=1)


class CacheTestCase(ApiTestCase):
    def ask(self, proxy: RunningProxy, api: Api, history: Any = "q", **fields: Any) -> ApiReply:
        return super().ask(proxy, api, history, **{"cache": True, **fields})

    def states(self, *replies: ApiReply) -> list[str | None]:
        return [reply.headers.get("x-cache") for reply in replies]


def reverse_keys(value: Any) -> Any:
    """The same value, with the keys of all objects in the other order."""
    if isinstance(value, dict):
        return {name: reverse_keys(value[name]) for name in reversed(value)}
    return [reverse_keys(each) for each in value] if isinstance(value, list) else value


class TestHits(CacheTestCase):
    @each_api()
    def test_a_hit_says_the_same_in_both_forms_without_a_call(self, api: Api) -> None:
        for first in (False, True):
            with self.subTest(first=first):
                proxy = self.proxy()
                self.fake.forget()
                self.fake.answer(ANSWER)
                replies = [self.ask(proxy, api, stream=stream) for stream in (first, False, True, first)]
                self.assertEqual(["miss", "hit", "hit", "hit"], self.states(*replies))
                self.assertEqual([first, False, True, first], [reply.is_stream for reply in replies])
                self.assertEqual(1, len(self.fake.seen))
                said = replies[0].said
                self.assertEqual([said] * 4, [reply.said for reply in replies])
                self.assertIn("A thought", said.reasoning)
                self.assertEqual(("The answer.", [("read_file", {"path": "a"})]), (said.text, said.inputs))
                # Keep-alives of the first time are not repeated.
                self.assertNotIn(b": keep-alive", replies[2].body)

    def test_a_plain_answer_that_breaks_in_its_text_is_asked_for_again(self) -> None:
        self.fake.answer(replace(ANSWER, reasoning=None, cut_after=2), ANSWER)
        reply = self.ask(self.proxy(retry_budget=5), CHAT, stream=False)
        self.assertEqual(("The answer.", 2), (reply.said.text, len(self.fake.seen)))

    def test_a_plain_answer_is_the_one_that_a_request_without_the_cache_gets(self) -> None:
        proxy, other = self.proxy(), self.proxy()
        self.fake.answer(ANSWER, ANSWER)
        with_cache = self.ask(proxy, CHAT).value
        without = self.ask(other, CHAT, cache=False).value
        for value in (with_cache, without):
            value.pop("id")
            value.pop("created")
            for call in value["choices"][0]["message"]["tool_calls"]:
                call.pop("index", None)
            value.pop("usage")
        self.assertEqual(without, with_cache)
        self.assertNotIn("stream", self.fake.seen[1].payload)

    def test_a_plain_answer_that_takes_long_begins_with_blanks(self) -> None:
        self.fake.answer(Answer(reasoning="R.", content="A long answer.", stall_after=2))
        with self.connect(self.proxy(heartbeat_interval=0.02), CHAT.request(cache=True)) as sock:
            seen = read_until(sock, b"\r\n\r\n1\r\n \r\n")
            self.fake.release.set()
            reply = read_next_reply(io.BytesIO(seen + read_until(sock, b"\r\n0\r\n\r\n")))
        self.assertEqual("A long answer.", json.loads(reply.body)["choices"][0]["message"]["content"])

    def test_the_thinking_block_and_the_notice_are_written_into_a_hit_as_well(self) -> None:
        proxy = self.proxy(display_reasoning="on")
        self.fake.answer(Answer(reasoning="A thought.", content="Done."))
        replies = [self.ask(proxy, CHAT, stream=stream) for stream in (True, True, False)]
        self.assertEqual(["miss", "hit", "hit"], self.states(*replies))
        self.assertEqual(1, len({reply.text for reply in replies}))
        self.assertIn("A thought.", replies[0].text)

    @each_api()
    def test_a_hit_is_remembered_so_that_the_next_turn_is_restored(self, api: Api) -> None:
        path = self.folder / f"{api}.sqlite3"
        store = ReasoningStore(path)
        self.fake.answer(Answer(reasoning="Deep.", content="One."))
        self.ask(self.proxy(store), api)
        with store.database.transaction() as connection:
            for table in ("keys", "reasonings"):
                connection.execute(f"DELETE FROM {table}")
        again = self.proxy(ReasoningStore(path))
        hit = self.ask(again, api)
        self.assertEqual(["hit"], self.states(hit))
        history = [api.user("q"), *hit.turn(keeps_thinking=False), api.user("More")]
        self.ask(again, api, history, cache=False)
        self.assert_upstream_saw("Deep.")

    def test_a_response_from_the_cache_is_stored_and_can_be_continued(self) -> None:
        proxy = self.proxy()
        self.fake.answer(Answer(reasoning="Deep.", content="One."))
        first, second = (self.ask(proxy, RESPONSES, stream=stream) for stream in (False, True))
        responses = [RESPONSES.whole(reply) for reply in (first, second)]
        self.assertNotEqual(responses[0]["id"], responses[1]["id"])
        for response in responses:
            self.ask(proxy, RESPONSES, "More", previous_response_id=response["id"], cache=False)
            self.assert_upstream_saw("Deep.")

    @needs("responses", "messages")
    def test_what_is_the_same_to_deepseek_is_a_hit_on_another_api(self) -> None:
        proxy = self.proxy()
        self.fake.answer(ANSWER)
        replies = [self.ask(proxy, api, max_tokens=1000) for api in (CHAT, RESPONSES)]
        self.assertEqual(["miss", "hit"], self.states(*replies))
        self.assertEqual(*(reply.said for reply in replies))

    def test_an_answer_is_forgotten_after_its_time_also_when_the_proxy_did_not_run_for_days(self) -> None:
        path = self.folder / "store.sqlite3"
        first = self.proxy(ReasoningStore(path))
        replies = [self.ask(first, CHAT)]
        first.close()
        age_rows(path, 9 * 24 * 3600)
        second = self.proxy(ReasoningStore(path))
        replies += [self.ask(second, CHAT), self.ask(second, CHAT)]
        self.assertEqual(["miss", "miss", "hit"], self.states(*replies))

    def test_searches_are_part_of_a_hit(self) -> None:
        self.fake.answer(Answer(content="Sunny.", searches=(Search("weather"),)))
        proxy, fields = self.proxy(), {"model": "deepseek-flash", "tools": [{"type": "web_search"}]}
        replies = [self.ask(proxy, RESPONSES, stream=stream, **fields) for stream in (False, True, False)]
        self.assertEqual(["miss", "hit", "hit"], self.states(*replies))
        for reply in replies:
            self.assertIn(b"web_search_call", reply.body)
            self.assertEqual("Sunny.", reply.said.text)

    def test_fields_that_a_search_adds_to_a_chat_are_part_of_a_hit(self) -> None:
        for fields in (web_tools.ASSUMED, web_tools.ASSUMED_BLOCKS):
            with self.subTest(fields[0][0]):
                text = None if fields is web_tools.ASSUMED_BLOCKS else "It is sunny."
                self.fake.answer(*[Answer(reasoning="R.", content=text, fields=fields)] * 2)
                data = {"model": "deepseek-flash", "tools": [{"type": "deepseek_web_search"}]}
                proxy = self.proxy()
                plain = self.ask(proxy, CHAT, **data, cache=False)
                cached = [self.ask(proxy, CHAT, **data, stream=stream) for stream in (False, False, True)]
                self.assertEqual([None, "miss", "hit", "hit"], self.states(plain, *cached))
                messages = [reply.value["choices"][0]["message"] for reply in (plain, *cached[:2])]
                self.assertEqual(messages[0], messages[1])
                self.assertEqual(messages[0], messages[2])

    def test_log_probabilities_are_part_of_a_hit(self) -> None:
        chunks = [
            {"index": 0, "delta": {"content": text}, "logprobs": {"content": [{"token": text, "logprob": -0.5}]}}
            for text in ("Hel", "lo")
        ]
        events = [{"id": "1", "object": "chat.completion.chunk", "choices": [each]} for each in chunks]
        events.append({"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        stream = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events) + b"data: [DONE]\n\n"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(stream)
        self.fake.answer(Raw(head + stream))
        proxy = self.proxy()
        for state in ("miss", "hit"):
            reply = self.ask(proxy, CHAT, logprobs=True)
            choice = reply.value["choices"][0]
            self.assertEqual((state, "Hello"), (reply.headers["x-cache"], choice["message"]["content"]))
            self.assertEqual(["Hel", "lo"], [each["token"] for each in choice["logprobs"]["content"]])

    def test_names_that_deepseek_refuses_are_the_clients_own_in_a_hit(self) -> None:
        proxy = self.proxy()

        def respond(payload: Json) -> Answer:
            return Answer(reasoning="R.", calls=(Call("c", payload["tools"][0]["function"]["name"], "{}"),))

        self.fake._responder = respond
        for name in ("look up", "look.up"):
            for stream in (False, True, False):
                said = self.ask(proxy, CHAT, tools=[CHAT.tool(name)], stream=stream).said
                self.assertEqual([(name, {})], said.inputs)
        sent = {json.dumps(seen.payload, sort_keys=True) for seen in self.fake.seen}
        self.assertEqual(len(sent), len(self.fake.seen))


class TestMisses(CacheTestCase):
    def test_whatever_differs_upstream_is_another_question(self) -> None:
        cases: list[Json] = [
            {}, {"history": "Q"}, {"model": "deepseek-flash"}, {"reasoning_effort": "max"},
            {"thinking": {"type": "disabled"}}, {"temperature": 0.5}, {"max_tokens": 7}, {"seed": 1},
            {"tools": "read_file list_files"}, {"user": "somebody"}, {"response_format": {"type": "json_object"}},
        ]  # fmt: skip
        proxy = self.proxy()
        for state in ("miss", "hit"):
            for case in cases:
                with self.subTest(state, case=case):
                    self.assertEqual(state, self.ask(proxy, CHAT, **case).headers["x-cache"])
        self.assertEqual(len(cases), len(self.fake.seen))

    def test_what_does_not_reach_deepseek_makes_no_difference(self) -> None:
        proxy = self.proxy()
        self.ask(proxy, CHAT)
        for fields in ({"metadata": {"a": "b"}}, {"store": True}, {"nomyo": {"cache": True}}):
            self.assertEqual("hit", self.ask(proxy, CHAT, **fields).headers["x-cache"])

    def test_tools_in_another_order_are_the_same_question(self) -> None:
        proxy = self.proxy()
        orders = ("a b c", "c b a", "b a c")
        replies = [self.ask(proxy, CHAT, tools=tools, metadata={"cursorConversationId": "1"}) for tools in orders]
        self.assertEqual(["miss", "hit", "hit"], self.states(*replies))

    @each_api()
    def test_another_order_of_keys_is_the_same_question_and_changes_nothing_upstream(self, api: Api) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer", "minimum": 0}}}
        tool = reverse_keys(api.tool("read_file", schema))
        replies = [self.ask(self.running, api, tools=[each]) for each in (tool, reverse_keys(tool))]
        self.assertEqual(["miss", "hit"], self.states(*replies))
        sent = self.fake.seen[-1].payload["tools"][0]["function"]["parameters"]["properties"]
        self.assertEqual(["b", "a"], list(sent))

    def test_keys_share_nothing(self) -> None:
        keys = {"access_keys": ["sk-one", "sk-two"]}
        for name, settings in (("own keys", {}), ("the key of the owner", keys)):
            environment = {"DEEPSEEK_API_KEY": "sk-held-by-the-proxy-0001"} if settings else {}
            with self.subTest(name), mock.patch.dict(os.environ, environment):
                proxy = self.proxy(**settings)
                replies = [self.ask(proxy, CHAT, key=key) for key in ("sk-one", "sk-two", "sk-one", "sk-two")]
                self.assertEqual(["miss", "miss", "hit", "hit"], self.states(*replies))

    def test_upstreams_share_nothing(self) -> None:
        store = self.folder / "store.sqlite3"
        first = self.proxy(ReasoningStore(store))
        self.ask(first, CHAT)
        first.close()
        second = self.proxy(ReasoningStore(store), upstream_base_url=f"{self.fake.url}/beta")
        self.assertEqual("miss", self.ask(second, CHAT).headers["x-cache"])

    def test_answers_that_broke_off_or_failed_or_are_of_no_use_are_never_stored(self) -> None:
        whole = Call("call_1", "read_file", '{"path": "a"}')
        steps: list[Any] = [
            Answer(reasoning="R.", content="Half of it", piece=4, cut_after=3), Failure(500), Failure(400, "Bad."),
            Answer(content="Too long", finish_reason="length"), Answer(content="No", finish_reason="content_filter"),
            Answer(reasoning="Hm."), Answer(reasoning="Hm.", content=" \n"),
            Answer(content="I call it.", finish_reason="tool_calls"),
            *(Answer(calls=(whole, Call("call_2", "read_file", text))) for text in ('{"path": ', "", "[1]", "words")),
            Answer(calls=(Call("call_2", "read_file", "{"),), finish_reason="stop"),
        ]  # fmt: skip
        for step in steps:
            for stream in (False, True):
                with self.subTest(step, stream=stream):
                    proxy = self.proxy()
                    self.fake.forget()
                    self.fake.answer(step, Answer(content="All of it."))
                    self.post(proxy, CHAT, stream=stream, cache=True)
                    again = self.ask(proxy, CHAT, stream=stream)
                    self.assertEqual(("miss", "All of it."), (again.headers["x-cache"], again.text))
                    self.assertEqual("hit", self.ask(proxy, CHAT, stream=stream).headers["x-cache"])

    def test_an_answer_whose_client_left_is_not_stored(self) -> None:
        proxy = self.proxy()
        self.fake.answer(Answer(content="Half", piece=1, stall_after=3))
        with self.connect(proxy, CHAT.request(stream=True, cache=True)):
            self.fake.stalls.get(timeout=PATIENCE)
        self.fake.hang_ups.get(timeout=PATIENCE)
        self.assertEqual("miss", self.ask(proxy, CHAT).headers["x-cache"])

    def await_response(self, proxy: RunningProxy, id: str) -> None:
        wait_until(lambda: self.call(proxy, "GET", f"/v1/responses/{id}").value["status"] == "completed")

    @needs("responses", "choices")
    def test_several_answers_and_background_responses_never_use_it(self) -> None:
        for setting in ("ask", "on"):
            proxy = self.proxy(response_cache=setting)
            for _ in range(2):
                self.assertEqual([None], self.states(self.ask(proxy, CHAT, n=2)))
                reply = self.ask(proxy, RESPONSES, background=True)
                self.await_response(proxy, reply.value["id"])
            self.assertEqual(6, len(self.fake.seen))
            self.fake.forget()

    def test_a_hit_does_not_vouch_for_the_key(self) -> None:
        path = self.folder / "store.sqlite3"
        first = self.proxy(ReasoningStore(path))
        self.ask(first, CHAT, key="sk-old")
        first.close()
        proxy = self.proxy(ReasoningStore(path), ngrok=True)
        self.assertEqual("hit", self.ask(proxy, CHAT, key="sk-old").headers["x-cache"])
        # The first key that DeepSeek accepts is the one that is served, not the first that had a hit.
        self.assertEqual("miss", self.ask(proxy, CHAT, key="sk-new").headers["x-cache"])


class TestAsking(CacheTestCase):
    def state(self, proxy: RunningProxy, api: Api = CHAT, header: str | None = None, **fields: Any) -> str | None:
        headers = [] if header is None else [f"x-cache: {header}"]
        return self.states(ApiTestCase.ask(self, proxy, api, headers=headers, **fields))[0]

    @each_api()
    def test_only_requests_that_ask_use_it_unless_the_setting_says_otherwise(self, api: Api) -> None:
        ways: list[Json] = [{"cache": True}, {"nomyo": {"cache": True}}, {"header": "use"}, {"header": "USE "}]
        silent: list[Json] = [{}, {"cache": None}, {"nomyo": {}}, {"nomyo": None}, {"header": "what"}]
        refusals: list[Json] = [{"cache": False}, {"nomyo": {"cache": False}}, {"header": "skip"}]
        expected = {"off": (None, None, None), "ask": ("hit", None, None), "on": ("hit", "hit", None)}
        for setting, states in expected.items():
            proxy = self.proxy(response_cache=setting)
            self.state(proxy, api, cache=True)
            for cases, state in zip((ways, silent, refusals), states, strict=True):
                for case in some(cases, 2):
                    with self.subTest(setting=setting, case=case):
                        self.assertEqual(state, self.state(proxy, api, **case))

    def test_its_fields_are_never_sent_nor_reported_as_dropped(self) -> None:
        for setting in ("off", "ask", "on"):
            proxy = self.proxy(response_cache=setting)
            with self.assertNoLogs(CONSOLE, logging.WARNING), self.assertLogs(CONSOLE, logging.INFO) as log:
                for api in APIS:
                    self.state(proxy, api, cache=True, nomyo={"cache": True})
            self.assertNotIn("not forwarded", "\n".join(log.output))
        for seen in self.fake.seen:
            self.assertFalse({"cache", "nomyo"} & seen.payload.keys())

    def test_its_fields_are_not_sent_to_other_upstreams_either(self) -> None:
        other, route = self.route()
        proxy = self.proxy(passthrough={"deepseek-flash": route}, access_keys=["sk-test"])
        reply = self.ask(proxy, CHAT, model="deepseek-flash", nomyo={"cache": True})
        self.assertEqual([None], self.states(reply))
        self.assertFalse({"cache", "nomyo"} & other.seen[0].payload.keys())

    @each_api()
    def test_a_field_of_the_wrong_type_is_named(self, api: Api) -> None:
        for field, fields in (
            ("cache", {"cache": "yes"}), ("nomyo", {"nomyo": 1}), ("nomyo.cache", {"nomyo": {"cache": 1}}),
        ):  # fmt: skip
            reply = self.post(self.running, api, **fields)
            self.assertEqual(400, reply.status)
            self.assertIn(field, reply.error["message"])

    def test_the_setting_can_be_changed_while_the_proxy_runs(self) -> None:
        proxy = self.proxy()
        self.state(proxy, cache=True)
        proxy.server.reconfigure(replace(proxy.server.config, response_cache="off"))
        self.assertIsNone(self.state(proxy, cache=True))


class TestReports(CacheTestCase, AdminCase):
    def test_a_hit_costs_nothing_and_says_so_in_log_admin_and_session(self) -> None:
        proxy = self.admin_proxy(display_reasoning="off")
        admin = self.admin(proxy)
        self.fake.answer(Answer(reasoning="A thought.", content="Done."))
        with self.assertLogs(CONSOLE, logging.INFO) as log:
            self.ask(proxy, CHAT)
            self.ask(proxy, CHAT, stream=True)
            rows = proxy.server.services().get(RequestLog)
            wait_until(lambda: len(rows.ended()) == 2)
        hit, miss = rows.ended()
        self.assertEqual((True, False), (hit.is_cached, miss.is_cached))
        assert hit.cost is not None
        assert miss.cost is not None
        self.assertEqual((0.0, 0.0, ""), (hit.cost.amount, hit.cost.saved, hit.upstream))
        self.assertGreater(miss.cost.amount, 0)
        self.assertEqual(miss.tokens, hit.tokens)
        self.assertFalse(hit.is_cost_unknown)
        lines = [line for line in log.output if "#2" in line]
        self.assertEqual(3, len(lines), lines)
        self.assertRegex(lines[-1], r"completed  cached answer · .* · stop · .* · \$0\.00")
        found = json.loads(self.get(admin, "/api/requests").body)["requests"]
        self.assertEqual([True, False], [row["cached"] for row in found])
        stats = json.loads(self.get(admin, "/api/stats").body)
        cache = stats["cache"]
        # The hit streamed its tokens in no time.
        self.assertIsNone(stats["tokens_per_second"])
        assert miss.tokens is not None
        tokens = miss.tokens.prompt + miss.tokens.output
        self.assertEqual(
            (1, 1, 1, tokens), tuple(cache[each] for each in ("hits", "misses", "entries", "saved_tokens"))
        )
        self.assertGreater(cache["bytes"], 0)
        self.assertAlmostEqual(miss.cost.amount, cache["saved"], places=6)
