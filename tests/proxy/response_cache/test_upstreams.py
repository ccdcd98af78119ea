"""The response cache with other APIs, hosts and several upstreams."""

import itertools
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.exchange import attempt
from deepseek_cursor_proxy.observers import trace
from deepseek_cursor_proxy.observers.events import Finished, Observers, Sent
from tests.fake_deepseek import Answer, Failure, FakeDeepSeek, Raw
from tests.fake_deepseek.dialects import DIALECTS
from tests.support.cache_client import ANSWER, APIS, CacheTestCase, body, read
from tests.support.harness import RunningProxy
from tests.support.pictures import part, user
from tests.support.raw_streams import EVENT_STREAM
from tests.support.upstreams import UpstreamsTestCase

REFUSAL = "The `reasoning_content` in the thinking mode must be passed back to the API."


class TestApis(CacheTestCase):
    def assert_hits(self, proxy: RunningProxy, api: str, **fields: Any) -> None:
        replies = [self.ask(proxy, api, stream=stream, **fields) for stream in (True, False, True)]
        self.assertEqual(["miss", "hit", "hit"], self.states(*replies))
        said = [read(api, reply) for reply in replies]
        self.assertEqual([said[0]] * 3, said)
        self.assertIn("A thought", said[0].reasoning)
        self.assertEqual("The answer.", said[0].text)

    def test_every_host(self) -> None:
        for host in DIALECTS:
            for api in APIS:
                with self.subTest(host, api=api), FakeDeepSeek(host=host) as fake:
                    fake.answer(Answer(reasoning="R.", content="Hi."), ANSWER)
                    settings = {"upstream_host": host, "upstream_model": "deepseek-ai/DeepSeek-V4-Pro"}
                    proxy = self.cache_proxy(upstream_base_url=fake.url, **settings)
                    # What the host calls reasoning is learned from the first answer.
                    self.ask(proxy, api, "first", cache=False)
                    self.assert_hits(proxy, api, model="deepseek-ai/DeepSeek-V4-Pro")
                    self.assertEqual(2, len(fake.seen))

    def test_what_was_learned_since_holds_for_a_hit_as_well(self) -> None:
        with FakeDeepSeek(host="plain") as fake:
            proxy = self.cache_proxy(upstream_base_url=fake.url, upstream_host="plain")
            replies = [self.ask(proxy, "chat", model="deepseek-ai/DeepSeek-V4-Pro") for _ in range(2)]
        self.assertEqual(["miss", "hit"], self.states(*replies))
        first, second = (reply.value["choices"][0]["message"] for reply in replies)
        self.assertIn("<think>", first["content"])
        self.assertEqual(("Hello.", "Thinking about it."), (second["content"], second["reasoning_content"]))

    def test_a_request_that_needs_a_second_attempt_is_a_hit_then(self) -> None:
        proxy = self.cache_proxy()
        self.fake.answer(Failure(400, REFUSAL), Answer(content="After all."), Failure(400, REFUSAL))
        history = [*body("chat")["messages"], {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
        for state in ("miss", "hit"):
            reply = self.post(proxy, "chat", {**body("chat"), "messages": history, "cache": True})
            self.assertEqual((200, state), (reply.status, reply.headers.get("x-cache")), reply.body)
            self.assertIn("After all.", reply.text)
        self.assertEqual([400, 200, 400], [seen.status for seen in self.fake.seen])

    def test_a_forced_call_that_comes_as_text_is_a_call_in_a_hit(self) -> None:
        proxy = self.cache_proxy()
        self.fake.answer(Answer(content='{"name": "read_file", "input": {"path": "a"}}'))
        choice = {"type": "function", "function": {"name": "read_file"}}
        for state in ("miss", "hit"):
            reply = self.ask(proxy, "chat", tool_choice=choice)
            call = reply.value["choices"][0]["message"]["tool_calls"][0]
            self.assertEqual((state, "read_file"), (reply.headers["x-cache"], call["function"]["name"]))

    def test_a_question_with_a_picture_that_flash_answers_is_a_hit(self) -> None:
        proxy = self.cache_proxy(pictures="flash")
        question = {**body("chat"), "messages": [user("What is this?", part("red"))], "cache": True}
        for stream in (False, True):
            self.assertEqual(200, self.post(proxy, "chat", {**question, "stream": stream}).status)
        self.assertEqual("hit", self.post(proxy, "chat", question).headers["x-cache"])
        self.assertEqual(1, len(self.fake.seen))

    def test_a_trace_of_a_hit_can_be_explained(self) -> None:
        proxy = self.cache_proxy(trace_dir=self.folder)
        self.fake.answer(ANSWER)
        self.ask(proxy, "chat")
        self.ask(proxy, "chat")
        proxy.close()
        *_, last = sorted(self.folder.glob("*.json"))
        self.assertIn("completed (200)", trace.explain(last))


class TestSeveralUpstreams(UpstreamsTestCase):
    def test_the_answer_of_each_upstream_is_found_when_it_is_asked(self) -> None:
        proxy = self.behind(self.tables())
        self.main.answer(Failure(402, "Insufficient Balance"))
        for state in ("miss", "hit"):
            reply = self.ask(proxy, "q", cache=True)
            self.assertEqual((200, state), (reply.status, reply.headers.get("x-cache")))
            # The chat stays where it was answered.
        self.assertEqual([1, 1], self.counts())

    def test_a_request_that_moves_to_another_upstream_is_one_request(self) -> None:
        """It is one miss, and its times are those of all calls."""
        found = []
        for main in (self.main, self.enterContext(FakeDeepSeek(responder=lambda _: Raw(EVENT_STREAM)))):
            proxy = self.behind(self.tables(main))
            clock = mock.Mock(monotonic=mock.Mock(side_effect=itertools.count()))
            with mock.patch.object(attempt, "time", clock), mock.patch.object(Observers, "emit") as emit:
                self.assertEqual(200, self.ask(proxy, "q", cache=True, stream=True).status)
            seen = [call.args[0] for call in emit.call_args_list]
            *_, accepted = [event for event in seen if isinstance(event, Sent)]
            (ended,) = [event for event in seen if isinstance(event, Finished)]
            self.assertEqual(1, proxy.server.services().response_cache.stats("USD").totals.misses)
            found.append((accepted.seconds, ended.timing.queue))
        self.assertEqual([(3.0, 1.0), (7.0, 2.0)], found)

    def test_a_hit_says_nothing_about_its_upstream(self) -> None:
        proxy = self.behind(self.tables())
        self.ask(proxy, "q", cache=True)
        breaker = proxy.server.services().upstreams.all[0].breaker
        assert breaker is not None
        breaker.record_failure(b"1")
        breaker.record_failure(b"2")
        self.assertEqual("hit", self.ask(proxy, "q", cache=True).headers["x-cache"])
        # Two failures and one more, with no success in between.
        self.assertTrue(breaker.record_failure(b"3"))
