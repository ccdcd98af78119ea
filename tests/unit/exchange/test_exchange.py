import json
import os
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import Batch, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.usage import TokenLogprobs
from deepseek_cursor_proxy.errors import BadRequest, MissingReasoning, UpstreamDropped, UpstreamRefused
from deepseek_cursor_proxy.exchange.exchange import Exchange
from deepseek_cursor_proxy.observers.events import CLIENT_LEFT, Finished
from deepseek_cursor_proxy.reasoning.chats import ChatTracker
from deepseek_cursor_proxy.upstream.client import Call
from tests.unit.exchange.fakes import DONE, ExchangeTestCase, FakeResponse, event

THOUGHT = event(reasoning_content="Hm.")
STOP = event("stop", content="")
ANSWER = (THOUGHT, event(content="Yes."), STOP + DONE)


def texts(batches: list[Batch]) -> str:
    return "".join(item.text or "" for batch in batches for item in batch if isinstance(item, Delta))


class TestExchange(ExchangeTestCase):
    def open(self, *answers: FakeResponse | Exception, **settings: Any) -> Exchange:
        services = self.services(*answers, **settings)
        return Exchange.open(self.request(services), services)

    def read(self, exchange: Exchange) -> list[Batch]:
        return list(exchange.deltas())

    def finished(self) -> Finished:
        (finished,) = [each for each in self.events if isinstance(each, Finished)]
        return finished

    def test_an_answer_is_handed_on_stored_and_reported(self) -> None:
        response = FakeResponse(*ANSWER)
        self.assertEqual("Yes.", texts(self.read(self.open(response))))
        self.assertEqual(["Hm."], self.stored_texts())
        end = self.finished().end
        self.assertEqual(("completed", 200, "stop"), (end.message, end.status, self.finished().finish_reason))
        self.assertEqual(["end_soon", "complete"], response.notes[-2:])
        self.assertEqual(["Received", "Restored", "Sent", "Finished"], self.names())

    def names(self) -> list[str]:
        return [type(each).__name__ for each in self.events]

    def test_a_request_is_noted_after_it_was_sent_and_before_its_answer(self) -> None:
        services = self.services(FakeResponse(*ANSWER))
        send, seen = self.upstream.send, []

        def send_and_wait(call: Call, slot: object) -> FakeResponse:
            seen.append(self.names())
            for _ in range(2):
                call.before_wait()
                seen.append(self.names())
            return send(call, slot)

        with mock.patch.object(self.upstream, "send", send_and_wait):
            self.read(Exchange.open(self.request(services), services))
        self.assertEqual([[], *[["Received", "Restored"]] * 2], seen)

    def test_a_call_that_failed_before_it_was_sent_is_noted_before_its_end(self) -> None:
        with self.assertRaises(UpstreamDropped):
            self.open(UpstreamDropped("no connection"))
        self.assertEqual(["Received", "Restored", "Finished"], self.names())
        self.events.clear()
        self.open(UpstreamDropped("no connection"), FakeResponse(*ANSWER), retry_budget=60).close()
        self.assertEqual(["Received", "Restored", "Sent", "Finished"], self.names())

    def test_a_request_that_cannot_be_prepared_is_noted_before_its_end(self) -> None:
        services = self.services(missing_reasoning_strategy="reject")
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        lost = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        lost.append({"role": "tool", "tool_call_id": "c", "content": "1"})
        with self.assertRaises(MissingReasoning):
            Exchange.open(self.request(services, messages=lost), services)
        self.assertEqual(["Received", "Finished"], self.names())
        # Not even a bug hides its end.
        self.events.clear()
        with mock.patch.object(ChatTracker, "compare", side_effect=KeyError), self.assertRaises(KeyError):
            Exchange.open(self.request(services, messages=lost), services)
        self.assertEqual(["Finished"], self.names())

    def test_a_turn_is_stored_before_the_batch_that_completes_it_is_handed_on(self) -> None:
        seen = []
        for batch in self.open(FakeResponse(*ANSWER)).deltas():
            is_end = any(isinstance(item, Delta) and item.finish_reason for item in batch)
            seen.append((is_end, self.stored_texts()))
        self.assertIn((True, ["Hm."]), seen)
        self.assertEqual([], next(stored for is_end, stored in seen if not is_end))

    def test_a_stream_without_a_finish_reason_is_a_failure_and_its_reasoning_is_stored(self) -> None:
        exchange = self.open(FakeResponse(THOUGHT, DONE))
        with self.assertRaisesRegex(UpstreamDropped, "without finishing"):
            self.read(exchange)
        self.assertEqual((["Hm."], 502), (self.stored_texts(), self.finished().end.status))

    def test_a_failure_behind_the_finish_reason_is_none(self) -> None:
        self.read(self.open(FakeResponse(*ANSWER[:2], STOP, UpstreamDropped("reset"))))
        self.assertEqual("completed", self.finished().end.message)

    def test_a_broken_stream_is_retried_while_the_client_has_no_output(self) -> None:
        broken = FakeResponse(UpstreamDropped("reset"))
        batches = self.read(self.open(broken, FakeResponse(*ANSWER), retry_budget=60))
        self.assertEqual(("Yes.", 1), (texts(batches), self.finished().retries))

    def test_a_broken_stream_is_not_retried_once_the_client_has_output(self) -> None:
        for piece in (THOUGHT, Heartbeat()):
            exchange = self.open(FakeResponse(piece, UpstreamDropped("reset")), retry_budget=60)
            with self.subTest(piece), self.assertRaises(UpstreamDropped):
                self.read(exchange)

    def test_a_plain_answer_that_broke_after_text_is_asked_for_again(self) -> None:
        """Its client has nothing yet."""
        services = self.services(
            FakeResponse(THOUGHT, event(content="No"), UpstreamDropped("reset")), FakeResponse(*ANSWER), retry_budget=60
        )
        batches = self.read(Exchange.open(self.request(services, is_plain=True), services))
        self.assertEqual(("Yes.", 1), (texts(batches), self.finished().retries))

    def test_log_probabilities_are_those_of_the_answer_that_counts(self) -> None:
        logprobs = TokenLogprobs()
        entries = {"reasoning_content": [{"token": "x", "logprob": -1.0, "bytes": [120]}]}
        thought = THOUGHT.replace(b'"delta"', b'"logprobs": %b, "delta"' % json.dumps(entries).encode())
        services = self.services(FakeResponse(thought, STOP + DONE), FakeResponse(thought, *ANSWER), retry_budget=60)
        request = self.request(services, is_plain=True, logprobs=logprobs)
        request.chat = request.chat._replace(params={"logprobs": True})
        self.assertEqual("Yes.", texts(self.read(Exchange.open(request, services))))
        self.assertEqual(["x"], [entry["token"] for entry in logprobs.reasoning])

    def test_a_request_that_no_upstream_can_be_sent_leaves_no_key_in_use(self) -> None:
        """Without web search, a choice that forces it is refused when the attempt is made, after a key was taken."""
        table = {"base_url": "https://api.deepseek.com", "key_env": "KEY"}
        with mock.patch.dict(os.environ, {"KEY": "sk-of-the-owner"}):
            services = self.services(upstreams={"one": table})
        request = self.request(services)
        tool = {"type": "deepseek_web_search"}
        request.chat = request.chat._replace(server_tools=(tool,), server_choice=tool)
        with self.assertRaises(BadRequest):
            Exchange.open(request, services)
        (upstream,) = services.upstreams.all
        assert upstream.keys is not None
        self.assertEqual([0], [key.calls for key in upstream.keys._keys])

    def test_an_exchange_closed_midway_stores_its_reasoning_and_reports_that_the_client_left(self) -> None:
        response = FakeResponse(THOUGHT, event(content="Y"))
        batches = self.open(response).deltas()
        next(batches)
        batches.close()
        self.assertEqual((["Hm."], CLIENT_LEFT), (self.stored_texts(), self.finished().end))
        self.assertEqual("closed", response.notes[-1])

    def test_a_call_that_is_refused_is_reported_without_the_key(self) -> None:
        refusal = UpstreamRefused(401, "bad key sk-0123456789", None, None)
        with self.assertRaises(UpstreamRefused):
            self.open(refusal)
        self.assertEqual(401, self.finished().end.status)
        self.assertNotIn("sk-0123456789", self.finished().end.message)
