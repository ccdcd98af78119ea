"""Which failures of a call are worth another one, and what the client gets of the others."""

import unittest
from typing import Any

from deepseek_cursor_proxy.errors import ProxyError, ProxyStopping, UpstreamDropped, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.attempt import Attempt
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.failover import Output
from deepseek_cursor_proxy.observers.events import Finished, Restored, Sent
from tests.support.scripted_upstreams import Case, World, play
from tests.unit.exchange.fakes import ExchangeTestCase, FakeResponse

MISSING = "The `reasoning_content` in the thinking mode must be passed back to the API."
# A turn whose reasoning nobody has: DeepSeek may do without it or not.
HISTORY = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "and?"},
)


def refusal(status: int = 400, message: str = MISSING) -> UpstreamRefused:
    return UpstreamRefused(status, message, None, None)


class TestFailover(ExchangeTestCase):
    def open(self, *answers: FakeResponse | Exception, is_held: bool = False, **settings: Any) -> Exchange:
        services = self.services(*answers, **settings)
        exchange = Exchange.open(self.request(services, messages=HISTORY, is_held=is_held), services)
        self.addCleanup(exchange.close)
        return exchange

    def after(self, exchange: Exchange, error: ProxyError, output: Output) -> Attempt:
        """What follows an answer that breaks."""
        return exchange._failover.after(exchange._attempt, error, output, in_answer=True)

    def test_a_refusal_for_missing_reasoning_is_repaired_once_with_a_transcript(self) -> None:
        self.open(refusal(), FakeResponse())
        self.assertEqual(2, len(self.upstream.payloads))
        self.assertNotEqual(*(payload["messages"] for payload in self.upstream.payloads))
        self.assertEqual([False, True], [each.is_second_attempt for each in self.events if isinstance(each, Restored)])

    def test_a_history_that_is_refused_again_is_a_failure_that_says_so(self) -> None:
        with self.assertRaises(UpstreamFailed) as caught:
            self.open(refusal(), refusal())
        self.assertEqual("reasoning_refused", caught.exception.code)

    def test_any_other_refusal_is_raised(self) -> None:
        with self.assertRaises(UpstreamRefused):
            self.open(refusal(422, "no"))

    def test_a_busy_deepseek_is_called_again(self) -> None:
        self.open(refusal(503, "busy"), FakeResponse(), retry_budget=60).close()
        (finished,) = [each for each in self.events if isinstance(each, Finished)]
        self.assertEqual(("http_503",), finished.retry_reasons)

    def test_the_refusal_of_the_proxys_own_key_is_no_401_of_the_client(self) -> None:
        with self.assertRaises(UpstreamFailed) as caught:
            self.open(refusal(401, "bad key"), is_held=True)
        self.assertEqual("held_key_refused", caught.exception.code)

    def test_a_failure_that_passes_is_retried_only_before_any_output(self) -> None:
        exchange = self.open(FakeResponse(), retry_budget=60)
        with self.assertRaises(UpstreamDropped):
            self.after(exchange, UpstreamDropped("reset"), Output.HEARTBEATS)
        self.assertIs(exchange._attempt, self.after(exchange, UpstreamDropped("reset"), Output.NOTHING))

    def test_a_refusal_inside_an_answer_is_repaired_only_before_any_content(self) -> None:
        exchange = self.open(FakeResponse())
        self.assertTrue(self.after(exchange, UpstreamFailed(MISSING), Output.DELTAS).is_transcript)
        with self.assertRaises(UpstreamFailed) as caught:
            self.after(exchange, UpstreamFailed(MISSING), Output.CONTENT)
        self.assertEqual("reasoning_refused", caught.exception.code)

    def test_a_proxy_that_stops_makes_no_call_again(self) -> None:
        exchange = self.open(FakeResponse())
        with self.assertRaises(ProxyStopping):
            self.after(exchange, ProxyStopping(), Output.NOTHING)

    def test_a_call_is_recorded_as_sent_once(self) -> None:
        attempt = self.open(FakeResponse())._attempt
        self.assertEqual([], [each for each in self.events if isinstance(each, Sent)])
        attempt.record_sent()
        attempt.record_sent()
        self.assertEqual(1, len([each for each in self.events if isinstance(each, Sent)]))


class TestSeveralUpstreams(unittest.TestCase):
    def test_a_search_that_one_upstream_refuses_is_sent_to_the_next_one(self) -> None:
        """The tools of the chat were known by those of the last call only, and the request ended with status 500."""
        outcome = play(Case(("400 tools", "timeout"), tables=(0, 0), has_search=True))
        self.assertEqual(["search", "", "search"], [call.form for call in outcome.calls])
        self.assertIsNone(outcome.error)

    def test_every_key_that_was_leased_is_released(self) -> None:
        with World(Case((), tables=(2, 1), budget=20)) as world:
            for faults in ((), ("429",), ("402", "401", "500"), ("500", "400")):
                world.ask(faults)
                pools = [upstream.keys for upstream in world.services.upstreams.all]
                self.assertEqual([0, 0, 0], [key.calls for pool in pools if pool is not None for key in pool._keys])

    def test_an_upstream_that_refuses_a_history_in_its_answer_is_followed_by_the_next_one(self) -> None:
        outcome = play(Case(("reasoning refused", "400 reasoning"), tables=(0, 0)))
        self.assertEqual([("u0", ""), ("u0", "transcript"), ("u1", "")], [(c.upstream, c.form) for c in outcome.calls])
