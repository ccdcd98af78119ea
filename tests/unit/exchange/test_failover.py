"""Which failures of a call are worth another one, and what the client gets of the others."""

import unittest
from typing import Any

from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed, UpstreamRefused
from deepseek_cursor_proxy.exchange.attempt import Attempt
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.exchange.failover import Output
from deepseek_cursor_proxy.observers.events import Restored
from tests.support.scripted_upstreams import Case, World
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

    def test_a_refusal_inside_an_answer_is_repaired_only_before_any_content(self) -> None:
        exchange = self.open(FakeResponse())
        self.assertTrue(self.after(exchange, UpstreamFailed(MISSING), Output.DELTAS).is_resent_transcript)
        with self.assertRaises(UpstreamFailed) as caught:
            self.after(exchange, UpstreamFailed(MISSING), Output.CONTENT)
        self.assertEqual("reasoning_refused", caught.exception.code)


class TestSeveralUpstreams(unittest.TestCase):
    def test_every_key_that_was_leased_is_released(self) -> None:
        with World(Case((), tables=(2, 1), budget=20)) as world:
            for faults in ((), ("429",), ("402", "401", "500"), ("500", "400")):
                world.ask(faults)
                pools = [upstream.keys for upstream in world.services.upstreams.all]
                self.assertEqual([0, 0, 0], [key.calls for pool in pools if pool is not None for key in pool._keys])
