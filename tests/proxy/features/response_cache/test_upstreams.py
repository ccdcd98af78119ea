"""The response cache with other APIs, hosts and several upstreams."""

import itertools
from unittest import mock

from deepseek_cursor_proxy.exchange import attempt
from deepseek_cursor_proxy.features.response_cache.feature import ResponseCache
from deepseek_cursor_proxy.observers.events import Finished, Observers, Sent
from tests.fake_deepseek import Answer, Failure, FakeDeepSeek, Raw
from tests.fake_deepseek.dialects import DIALECTS
from tests.proxy.features.response_cache.test_hits import ANSWER, CacheTestCase
from tests.support.apis import CHAT, Api, each_api
from tests.support.pictures import part, user
from tests.support.raw_streams import EVENT_STREAM
from tests.support.upstreams import UpstreamsTestCase
from tests.support.width import some

REFUSAL = "The `reasoning_content` in the thinking mode must be passed back to the API."


class TestApis(CacheTestCase):
    @each_api()
    def test_every_host(self, api: Api) -> None:
        model = "deepseek-ai/DeepSeek-V4-Pro"
        for host in some(DIALECTS, 3):
            with self.subTest(host), FakeDeepSeek(host=host) as fake:
                fake.answer(Answer(reasoning="R.", content="Hi."), ANSWER)
                proxy = self.proxy(upstream_base_url=fake.url, upstream_host=host, upstream_model=model)
                # What the host calls reasoning is learned from the first answer.
                self.ask(proxy, api, "first", cache=False)
                replies = [self.ask(proxy, api, stream=stream, model=model) for stream in (True, False, True)]
                self.assertEqual(["miss", "hit", "hit"], self.states(*replies))
                said = replies[0].said
                self.assertEqual([said] * 3, [reply.said for reply in replies])
                self.assertEqual(("A thought " * 4, "The answer."), (said.reasoning, said.text))
                self.assertEqual(2, len(fake.seen))

    def test_what_was_learned_since_holds_for_a_hit_as_well(self) -> None:
        with FakeDeepSeek(host="plain") as fake:
            proxy = self.proxy(upstream_base_url=fake.url, upstream_host="plain")
            replies = [self.ask(proxy, CHAT, model="deepseek-ai/DeepSeek-V4-Pro") for _ in range(2)]
        self.assertEqual(["miss", "hit"], self.states(*replies))
        first, second = (reply.value["choices"][0]["message"] for reply in replies)
        self.assertIn("<think>", first["content"])
        self.assertEqual(("Hello.", "Thinking about it."), (second["content"], second["reasoning_content"]))

    def test_a_request_that_needs_a_second_attempt_is_a_hit_then(self) -> None:
        proxy = self.proxy()
        self.fake.answer(Failure(400, REFUSAL), Answer(content="After all."), Failure(400, REFUSAL))
        for state in ("miss", "hit"):
            reply = self.ask(proxy, CHAT, [CHAT.user("q"), *CHAT.turn("a"), CHAT.user("b")])
            self.assertEqual([state], self.states(reply))
            self.assertIn("After all.", reply.text)
        self.assertEqual([400, 200, 400], [seen.status for seen in self.fake.seen])

    def test_a_question_with_a_picture_that_flash_answers_is_a_hit(self) -> None:
        proxy = self.proxy(pictures="flash")
        question = [user("What is this?", part("red"))]
        replies = [self.ask(proxy, CHAT, question, stream=stream) for stream in (False, True)]
        self.assertEqual(["miss", "hit"], self.states(*replies))
        self.assertEqual(1, len(self.fake.seen))


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
            self.assertEqual(1, proxy.server.services().get(ResponseCache).answers.stats("USD").totals.misses)
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
