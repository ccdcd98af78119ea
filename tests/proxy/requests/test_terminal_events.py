"""Every request ends in exactly one terminal event, whatever happens to it, and no record has a prompt or a key."""

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.conversation import Reply
from deepseek_cursor_proxy.features.request_log.feature import RequestLog, RequestRecord
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter
from tests.fake_deepseek import Answer, Call, Failure, Raw
from tests.support.harness import PATIENCE, RunningProxy, SocketTestCase, chat_body, read_reply, request_bytes
from tests.support.histories import TOOLS
from tests.support.polling import wait_until

STALLED = Answer(reasoning="A thought.", content="Half of it.", piece=10, stall_after=3)
MESSAGE = {"model": "claude-sonnet", "max_tokens": 2000, "messages": [{"role": "user", "content": "q"}]}
ELSEWHERE = "deepseek-flash"
SECRETS = ("planted-prompt", "planted-answer", "planted-thought", "planted-argument", "planted-tool", "sk-planted-key")

Act = Callable[["TestTerminalEvents", RunningProxy], object]


def send(body: Any, *, path: str = "/v1/chat/completions", key: str = "sk-test", method: str = "POST") -> Act:
    def act(test: "TestTerminalEvents", proxy: RunningProxy) -> object:
        return test.round_trip(proxy, request_bytes(body, method=method, path=path, key=key))

    return act


def send_response(**fields: Any) -> Act:
    return send({"input": "q", **fields}, path="/v1/responses")


def leave(body: Any, *, path: str = "/v1/chat/completions") -> Act:
    def act(test: "TestTerminalEvents", proxy: RunningProxy) -> None:
        with test.connect(proxy, request_bytes(body, path=path)):
            test.fake.stalls.get(timeout=PATIENCE)

    return act


def leave_in_the_body(test: "TestTerminalEvents", proxy: RunningProxy) -> None:
    data = request_bytes(chat_body())
    test.connect(proxy, data[:-5]).close()


def cancel_in_the_queue(test: "TestTerminalEvents", proxy: RunningProxy) -> None:
    """Two background responses for one worker; the one that waits is cancelled, then the other ends."""
    test.fake.answer(STALLED)
    body = {"model": "deepseek-v4-pro", "input": "q", "background": True}
    ids = [test.round_trip(proxy, request_bytes(body, path="/v1/responses")).value["id"] for _ in range(2)]
    test.fake.stalls.get(timeout=PATIENCE)
    test.round_trip(proxy, request_bytes({}, path=f"/v1/responses/{ids[1]}/cancel"))
    test.fake.release.set()


def in_background(test: "TestTerminalEvents", proxy: RunningProxy) -> None:
    """A background response, and its events again when it has ended: they are no second generation."""
    body = {"model": "deepseek-v4-pro", "input": "q", "background": True}
    created = test.round_trip(proxy, request_bytes(body, path="/v1/responses")).value
    wait_until(lambda: test.records)
    again = request_bytes(method="GET", path=f"/v1/responses/{created['id']}?stream=true")
    test.assertIn(b"response.completed", test.round_trip(proxy, again).body)


def with_bug(target: object, name: str, act: Act) -> Act:
    """The act with a method of ours that raises."""

    def run(test: "TestTerminalEvents", proxy: RunningProxy) -> None:
        logs = test.assertLogs("deepseek_cursor_proxy", "ERROR")
        with mock.patch.object(target, name, side_effect=KeyError("planted-prompt")), logs:
            act(test, proxy)

    return run


send_message = send(MESSAGE, path="/v1/messages")
CUT = Answer(reasoning="Hm.", content="Some text.", piece=4, cut_after=3)
REFUSED = Failure(402, "Insufficient Balance")
STREAM = chat_body(stream=True)

# What happens, what DeepSeek answers, and how the request ended: in one word, its status, its API.
CASES: dict[str, tuple[Act, tuple[Any, ...], str]] = {
    "a stream": (send(STREAM), (), "completed 200 chat"),
    "a plain answer": (send(chat_body()), (), "completed 200 chat"),
    "a message": (send_message, (), "completed 200 messages"),
    "a response": (send_response(), (), "completed 200 responses"),
    "a streamed response": (send_response(stream=True), (), "completed 200 responses"),
    "a background response and its replay": (in_background, (), "completed 200 responses"),
    "three choices": (send(chat_body(n=3)), (), "completed 200 chat"),
    "three choices, streamed": (send(chat_body(n=3, stream=True)), (), "completed 200 chat"),
    "three choices, one refused": (send(chat_body(n=3)), (REFUSED,), "failed 402 chat"),
    "three choices, the client leaves": (leave(chat_body(n=3, stream=True)), (STALLED,) * 3, "client_left 499 chat"),
    "a refusal of DeepSeek": (send(chat_body()), (REFUSED,), "failed 402 chat"),
    "a message that DeepSeek refuses": (send_message, (REFUSED,), "failed 402 messages"),
    "a stream that breaks": (send(STREAM), (CUT,), "failed 502 chat"),
    "an upstream that closes": (send(chat_body()), (Raw(b""),), "failed 502 chat"),
    "the client leaves a stream": (leave(STREAM), (STALLED,), "client_left 499 chat"),
    "the client leaves a plain answer": (leave(chat_body()), (STALLED,), "client_left 499 chat"),
    "the client leaves a message": (leave(MESSAGE, path="/v1/messages"), (STALLED,), "client_left 499 messages"),
    "the client leaves in its body": (leave_in_the_body, (), "refused 400 chat"),
    "a wrong key": (send(chat_body(), key="sk-planted-key"), (), "refused 401 chat"),
    "a body that is no JSON": (send(b"planted-prompt"), (), "refused 400 chat"),
    "a field that is wrong": (send(chat_body(temperature="hot")), (), "refused 400 chat"),
    "no limit in a message": (send({"messages": []}, path="/v1/messages"), (), "refused 400 messages"),
    "a body that is too large": (send(chat_body("x" * 5000)), (), "refused 413 chat"),
    "a body nested too deeply": (send(b'{"messages":' + b"[" * 2000), (), "refused 400 chat"),
    "an unknown path": (send({}, path="/v1/nowhere"), (), "refused 404 other"),
    "a method that is wrong": (send({}, method="PUT"), (), "refused 405 other"),
    "an unknown response": (send({}, path="/v1/responses/no/cancel"), (), "refused 404 responses"),
    "passed on": (send(chat_body(model=ELSEWHERE)), (), "passed_through 200 chat"),
    "passed on, streamed": (send(chat_body(model=ELSEWHERE, stream=True)), (), "passed_through 200 chat"),
    "passed on and refused": (send(chat_body(model=ELSEWHERE)), (REFUSED,), "passed_through 402 chat"),
    "passed on and left": (leave(chat_body(model=ELSEWHERE, stream=True)), (STALLED,), "client_left 499 chat"),
    "passed on without its key": (send(chat_body(model="gpt-8")), (), "refused 401 chat"),
    "a bug before the call": (with_bug(ChatMemory, "decode", send(chat_body())), (), "failed 500 chat"),
    "a bug in the exchange": (with_bug(Reply, "add", send(chat_body())), (), "failed 500 chat"),
    "a bug in a stream": (with_bug(Reply, "add", send(STREAM)), (), "failed 500 chat"),
    "a bug while writing": (with_bug(ChunkWriter, "write", send(STREAM)), (), "failed 500 chat"),
    "a bug while writing two": (
        with_bug(ChunkWriter, "write", send(chat_body(n=2, stream=True))),
        (),
        "failed 500 chat",
    ),
}


class TestTerminalEvents(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.records: list[RequestRecord] = []

    def watched(self, **settings: Any) -> RunningProxy:
        route = {"base_url": self.fake.url, "key_env": "ROUTE_KEY"}
        self.enterContext(mock.patch.dict("os.environ", {"ROUTE_KEY": "sk-route-1234567"}))
        passthrough = {ELSEWHERE: route, "gpt-8": {**route, "key_env": "NO_SUCH_KEY"}}
        settings = {"access_keys": ["sk-test"], "max_request_body_bytes": 5000, "passthrough": passthrough, **settings}
        proxy = self.proxy(**settings)
        log = proxy.server.services().get(RequestLog)
        log.subscribe(self.records.append)
        self.records.clear()
        return proxy

    def ended(self, proxy: RunningProxy, count: int = 1) -> list[RequestRecord]:
        """The records of a proxy that has stopped, after which nothing can end any more."""
        wait_until(lambda: len(self.records) >= count)
        self.assertEqual([], proxy.server.services().get(RequestLog).running())
        proxy.close()
        return self.records

    def test_every_request_ends_in_exactly_one_terminal_event(self) -> None:
        for name, (act, steps, expected) in CASES.items():
            with self.subTest(name), contextlib.closing(self.watched()) as proxy:
                self.fake.forget()
                self.fake.answer(*steps)
                act(self, proxy)
                found = self.ended(proxy)
                self.assertEqual([expected], [f"{each.result.value} {each.status} {each.facts.api}" for each in found])
                self.assertEqual(1, found[0].number)
                self.assertEqual(expected.startswith("completed"), found[0].message is None)
                self.assertNotIn("planted", str(found))

    def test_a_full_queue_is_one_refusal(self) -> None:
        for body in (chat_body(), chat_body(n=2)):
            with contextlib.closing(self.watched(max_upstream_calls=1, queue_timeout=0.01)) as proxy:
                self.fake.answer(STALLED)
                first = self.connect(proxy, STREAM)
                self.fake.stalls.get(timeout=PATIENCE)
                self.assertEqual(429, self.round_trip(proxy, body).status)
                self.fake.release.set()
                read_reply(first)
                refused, completed = self.ended(proxy, 2)
                self.fake.release.clear()
            self.assertEqual(("refused", 429), (refused.result.value, refused.status))
            self.assertGreater(refused.timing.queue or refused.timing.total, 0.009)
            self.assertEqual("completed", completed.result.value)

    def test_a_job_that_is_cancelled_in_the_queue_ends_once_and_so_does_the_running_one(self) -> None:
        proxy = self.watched(background_workers=1)
        cancel_in_the_queue(self, proxy)
        left, completed = self.ended(proxy, 2)
        self.assertEqual(("client_left", 499, 2), (left.result.value, left.status, left.number))
        self.assertEqual(("completed", 1), (completed.result.value, completed.number))

    def test_a_proxy_that_stops_fails_what_runs(self) -> None:
        proxy = self.watched()
        self.fake.answer(STALLED)
        self.connect(proxy, STREAM)
        self.fake.stalls.get(timeout=PATIENCE)
        proxy.server.shutdown()
        proxy.server.drain(0)
        (found,) = self.records
        self.assertEqual(("failed", 503), (found.result.value, found.status))

    def test_requests_that_generate_nothing_have_no_event_unless_they_are_refused(self) -> None:
        proxy = self.watched()
        for path in ("/v1/models", "/health", "/v1/healthz"):
            self.assertEqual(200, send(b"", path=path, method="GET")(self, proxy).status)  # type: ignore[attr-defined]
        count = send(MESSAGE, path="/v1/messages/count_tokens")
        self.assertEqual(200, count(self, proxy).status)  # type: ignore[attr-defined]
        proxy.close()
        self.assertEqual([], self.records)

    def test_a_record_has_every_figure_and_no_text(self) -> None:
        call = Call("call_1", "read_file", '{"path": "planted-argument"}')
        self.fake.answer(Answer(reasoning="planted-thought", content="planted-answer", calls=(call,)))
        proxy = self.watched(access_keys=["sk-planted-key"], max_request_body_bytes=10**6)
        tools = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "description": "planted-tool"}}]
        body = chat_body("planted-prompt", tools=tools, stream=True, model="gpt-5", user="planted-prompt", store=True)
        reply = self.round_trip(proxy, request_bytes(body, key="sk-planted-key"))
        self.assertIn(b"planted-answer", reply.body)
        (found,) = self.ended(proxy)
        for secret in SECRETS:
            self.assertNotIn(secret, str(found))
        facts, timing = found.facts, found.timing
        self.assertEqual(("chat", "gpt-5", "deepseek-v4-pro", True), (facts.api, *facts[4:7]))
        self.assertEqual((1, 1, len(facts.key), len(facts.conversation)), (facts.messages, facts.tools, 12, 12))
        self.assertGreater(facts.body_bytes, 100)
        assert found.tokens is not None
        assert timing.first_delta is not None
        self.assertGreater(found.tokens.miss, 0)
        self.assertGreaterEqual(timing.total, timing.first_delta)
        self.assertGreaterEqual(timing.first_delta, (timing.connect or 0) + (timing.queue or 0))
        self.assertGreater(timing.connect or 0, 0)
        self.assertEqual(("tool_calls", "DeepSeek"), (found.finish_reason, found.upstream))
        self.assertIn("store", found.dropped)

    def test_a_running_request_tells_how_far_it_is(self) -> None:
        proxy = self.watched()
        self.fake.answer(STALLED)
        sock = self.connect(proxy, STREAM)
        self.fake.stalls.get(timeout=PATIENCE)
        log = proxy.server.services().get(RequestLog)
        wait_until(lambda: log.running()[0].phase == "streaming" and log.running()[0].output_tokens_estimate)
        (running,) = log.running()
        self.assertEqual((1, "chat", True), (running.facts.number, running.facts.api, running.facts.stream))
        self.assertEqual(12, len(running.facts.conversation))
        self.assertIsNotNone(running.first_delta_seconds)
        self.fake.release.set()
        read_reply(sock)
        self.ended(proxy)
