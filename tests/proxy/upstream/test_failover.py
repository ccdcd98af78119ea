"""Several upstreams: one that fails is followed by the next, as long as the client has nothing of an answer."""

import contextlib
import gc
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.exchange import failover
from deepseek_cursor_proxy.features.traces.trace import explain
from deepseek_cursor_proxy.upstream.response import UpstreamResponse
from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw, Step
from tests.support.harness import PATIENCE, chat_body, read_reply, read_until, request_bytes
from tests.support.histories import TOOLS, tool_calls
from tests.support.polling import wait_until
from tests.support.upstreams import CHAT, CONSOLE, MESSAGES, RESPONSES, UpstreamsTestCase, failing, question
from tests.support.width import width

HELLO = "Hello."
CALL = Call("call_00_abcdefghijklmnop123456", "read_file", '{"path":"a.py"}')
CALLING = Answer(reasoning="Look first.", content="Looking.", calls=(CALL,))
TURN = {"role": "assistant", "content": "Looking.", "tool_calls": tool_calls([CALL])}
RESULT = {"role": "tool", "tool_call_id": CALL.id, "content": "ok"}
NEVER = Raw(b"", then_stall=True)
CUT = Raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
WAITING = Raw(CUT.data + b": keep-alive\n\n")


@contextlib.contextmanager
def impatient_with_main() -> Iterator[None]:
    """Responses of the first upstream have a short deadline; the next one may be late on a busy machine."""
    init = UpstreamResponse.__init__

    def new(response: UpstreamResponse, connection: Any, pool: Any, config: ProxyConfig, peer: Any, to: Any) -> None:
        config = replace(config, request_timeout=0.2) if "main" in to.name else config
        init(response, connection, pool, config, peer, to)

    with mock.patch.object(UpstreamResponse, "__init__", new):
        yield


def forever(step: Step) -> FakeDeepSeek:
    return FakeDeepSeek(responder=lambda _: step)


class TestFailures(UpstreamsTestCase):
    def test_the_next_upstream_answers_on_every_api(self) -> None:
        proxy = self.behind(self.tables(main=self.dead()))
        for path in (CHAT, RESPONSES, MESSAGES):
            for stream in (False, True):
                with self.subTest(path, stream=stream):
                    reply = self.round_trip(proxy, question(path, f"{path} {stream}", stream=stream))
                    self.assertEqual((200, True), (reply.status, HELLO.encode() in reply.body))
        self.assertEqual(6, len(self.spare.accepted))

    def test_failures_after_which_the_next_one_is_asked(self) -> None:
        failures: dict[str, tuple[Step, bool]] = {
            "busy": (Failure(429), True),
            "overloaded": (Failure(503), True),
            "of a gateway": (Failure(529, body=b"<html>"), True),
            "without balance": (Failure(402, "Insufficient Balance"), True),
            "no such path": (Failure(404), True),
            "unknown model": (Failure(400, "Model Not Exist"), True),
            "no HTTP": (Raw(b"SSH-2.0\r\n\r\n"), True),
            "redirect": (Raw(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1\r\nContent-Length: 0\r\n\r\n"), True),
            "cut before the answer": (Raw(b""), True),
            "silent": (NEVER, True),
            "no event": (CUT, True),
            "keep-alives only": (WAITING, True),
            "bad request": (Failure(400, "messages[0]: invalid"), False),
            "wrong key": (Failure(401), False),
            "forbidden": (Failure(403), False),
            "too long": (Failure(400, "This model's maximum context length is 1000 tokens."), False),
            "unprocessable": (Failure(422), False),
        }
        for number, (name, (step, moves)) in enumerate(failures.items()):
            for stream in width((number % 2 == 0 or step in (CUT, WAITING),), (False, True)):
                if not stream and step in (CUT, WAITING):
                    continue
                with self.subTest(name, stream=stream), forever(step) as main:
                    self.spare.forget()
                    is_silent = step in (NEVER, WAITING)
                    proxy = self.behind(self.tables(main=main))
                    with impatient_with_main() if is_silent else contextlib.nullcontext():
                        reply = self.ask(proxy, stream=stream)
                    self.assertEqual((moves, moves), (reply.status == 200, HELLO.encode() in reply.body))
                    self.assertEqual([1, int(moves)], self.counts(main, self.spare))

    def test_a_request_that_moved_is_forgotten_without_the_garbage_collector(self) -> None:
        """An error that was kept for a later round has a traceback, which held the request and its body."""
        self.spare.answer("There.")
        proxy = self.behind(self.tables(self.enterContext(failing(503))))
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        self.assertEqual(200, self.ask(proxy, "Forget this.").status)
        kept = lambda each: isinstance(each, ChatRequest) and "Forget this." in str(each.messages)  # noqa: E731
        wait_until(lambda: not any(map(kept, gc.get_objects())))

    def test_an_answer_that_has_begun_is_never_begun_again(self) -> None:
        self.main.answer(Answer(reasoning="Hm.", content="One two three", piece=3, cut_after=3))
        reply = self.ask(self.behind(self.tables()), stream=True)
        self.assertIn(b"cut off", reply.body)
        self.assertEqual([1, 0], self.counts())

    def test_heartbeats_are_no_answer(self) -> None:
        self.main.answer(Answer(stall_after=0))
        proxy = self.behind(self.tables(), heartbeat_interval=0.05)
        with self.connect(proxy, {**chat_body(), "stream": True}) as sock:
            read_until(sock, b"\r\n\r\n")
            read_until(sock, b"data: ")
            self.main.close()
            self.assertIn(b"[DONE]", read_until(sock, b"[DONE]"))
        self.assertEqual(1, len(self.spare.accepted))

    def test_an_error_names_all_that_were_asked(self) -> None:
        proxy = self.behind(self.tables(main=self.enterContext(failing(503)), spare=self.enterContext(failing(429))))
        status, message = self.error(proxy)
        self.assertEqual(429, status)
        self.assertIn("Asked before: main (answered 503).", message)
        proxy = self.behind(self.tables(main=self.dead(), spare=self.enterContext(failing(404))))
        status, message = self.error(proxy)
        self.assertEqual(502, status)
        self.assertRegex(message, r"No upstream can answer: main \(.*cannot be reached.*\), spare \(answered 404\)")
        self.assertNotIn("DeepSeek", message)
        bad = self.enterContext(failing(400, "messages[0]: invalid"))
        status, message = self.error(self.behind(self.tables(main=self.dead(), spare=bad)))
        self.assertEqual((400, "messages[0]: invalid"), (status, message))

    def test_a_history_that_the_last_one_keeps_refusing_is_no_reason_to_try_again(self) -> None:
        """The client got a 502 without the code, and was asked to try again in a moment."""
        refusal = "The `reasoning_content` in the thinking mode must be passed back to the API."
        proxy = self.behind(self.tables(self.enterContext(failing(503)), self.enterContext(failing(400, refusal))))
        error = json.loads(self.ask(proxy).body)["error"]
        self.assertEqual("reasoning_refused", error["code"])
        self.assertRegex(error["message"], r"Start a new chat\. Asked before: main \(answered 503\)\.$")

    def test_an_upstream_that_wants_a_longer_pause_is_not_asked_again(self) -> None:
        main, spare = self.enterContext(failing(503)), self.enterContext(failing(429, headers=(("Retry-After", "60"),)))
        with mock.patch.object(failover, "pause"):
            self.assertEqual(503, self.ask(self.behind(self.tables(main, spare), retry_budget=5)).status)
        asked, waited = self.counts(main, spare)
        self.assertEqual((True, 1), (asked > 1, waited))

    def test_a_key_that_an_upstream_quotes_is_in_no_log_and_no_trace(self) -> None:
        key = "planted-key-of-a-client"
        body = json.dumps({"error": {"message": f"Bad key {key}"}}).encode()
        self.main.answer(Raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body))
        proxy = self.behind(self.tables(), trace_dir=self.folder, verbose=True)
        with self.assertLogs("deepseek_cursor_proxy", "DEBUG") as logged:
            self.assertEqual(200, self.ask(proxy, key=key).status)
        texts = [*logged.output, *(path.read_text() for path in self.folder.glob("*.json"))]
        self.assertIn("Bad key ***", "".join(texts))
        self.assertNotIn(key, "".join(texts))

    def test_a_trace_says_why_another_was_asked(self) -> None:
        main = self.enterContext(failing(503))
        proxy = self.behind(self.tables(main=main), trace_dir=self.folder)
        self.ask(proxy)
        (path,) = self.folder.glob("*.json")
        report = explain(path)
        self.assertIn("main: answered 503; spare was asked:", report)
        self.assertNotIn("missing reasoning", report)

    def test_several_choices_move_together(self) -> None:
        # One that is late would find that its chat has moved.
        together = threading.Barrier(3)

        def fail(_: dict[str, Any]) -> Step:
            together.wait(PATIENCE)
            return Failure(503)

        main = self.enterContext(FakeDeepSeek(responder=fail))
        reply = self.ask(self.behind(self.tables(main=main)), n=3)
        self.assertEqual([HELLO] * 3, [choice["message"]["content"] for choice in reply.value["choices"]])
        self.assertEqual([3, 3], self.counts(main, self.spare))

    def test_a_background_response_moves_too(self) -> None:
        proxy = self.behind(self.tables(main=self.dead()))
        body = {"model": "deepseek-v4-pro", "input": "x", "background": True, "stream": True}
        reply = self.round_trip(proxy, request_bytes(body, path=RESPONSES))
        self.assertIn(b"event: response.completed", reply.body)


class TestStickiness(UpstreamsTestCase):
    def test_a_chat_stays_where_it_was_answered_and_new_ones_return(self) -> None:
        main = self.enterContext(FakeDeepSeek(responder=lambda payload: answers.pop(0) if answers else Answer()))
        answers: list[Step] = [Failure(503)]
        proxy = self.behind(self.tables(main=main))
        for _ in range(3):
            self.ask(proxy, "the same chat")
        self.assertEqual([1, 3], self.counts(main, self.spare))
        self.ask(proxy, "a new chat")
        self.assertEqual([2, 3], self.counts(main, self.spare))

    def test_reasoning_goes_along(self) -> None:
        proxy = self.behind(self.tables())
        self.main.answer(CALLING)
        history = [{"role": "user", "content": "q"}]
        self.round_trip(proxy, {"messages": history, "tools": TOOLS})
        self.main.answer(Failure(402))
        self.round_trip(proxy, {"messages": [*history, TURN, RESULT], "tools": TOOLS})
        (sent,) = self.spare.accepted
        self.assertEqual("Look first.", sent["messages"][1]["reasoning_content"])

    def test_a_chat_that_began_without_tables_is_known_with_them(self) -> None:
        before = self.proxy(display_reasoning="off")
        self.main.answer(CALLING)
        history = [{"role": "user", "content": "q"}]
        self.round_trip(before, {"messages": history, "tools": TOOLS})
        # The setting base_url is asked no more, but still names the chats of before.
        after = self.proxy(before.store, upstreams=self.tables(main=self.spare), display_reasoning="off")
        self.round_trip(after, {"messages": [*history, TURN, RESULT], "tools": TOOLS})
        self.assertEqual("Look first.", self.spare.accepted[-1]["messages"][1]["reasoning_content"])

    def test_a_full_upstream_leaves_new_chats_to_the_next(self) -> None:
        tables = self.tables()
        tables["main"]["max_calls"] = 1
        proxy = self.behind(tables)
        self.main.answer(Answer(stall_after=2))
        with self.connect(proxy, {**chat_body("one"), "stream": True}) as sock:
            self.main.stalls.get(timeout=PATIENCE)
            self.assertEqual(HELLO, self.ask(proxy, "two").text)
            self.main.release.set()
            read_reply(sock)
        self.assertEqual([1, 1], self.counts())


class TestBreaker(UpstreamsTestCase):
    def test_an_upstream_that_cannot_be_reached_is_told_once_and_left_alone(self) -> None:
        proxy = self.behind(self.tables(main=self.dead()))
        with self.assertLogs(CONSOLE, "INFO") as logged:
            for number in range(4):
                self.ask(proxy, f"chat {number}")
        self.assertEqual(1, sum("others are asked first for 10 s" in line for line in logged.output))
        self.assertEqual(1, sum("rerouted" in line for line in logged.output))

    def test_a_probe_brings_it_back(self) -> None:
        main = self.enterContext(FakeDeepSeek(responder=lambda _: steps.pop(0) if steps else Answer()))
        steps: list[Step] = [Failure(500)] * 3
        proxy = self.behind(self.tables(main=main))
        for number in range(4):
            self.ask(proxy, f"chat {number}")
        (upstream, _) = proxy.server.services().upstreams.all
        assert upstream.breaker is not None
        upstream.breaker._probe_at = time.monotonic()
        with self.assertLogs(CONSOLE, "INFO") as logged:
            self.ask(proxy, "the probe")
            self.ask(proxy, "after it")
        self.assertEqual(1, sum("upstream main answers again" in line for line in logged.output))
        self.assertEqual([5, 4], self.counts(main, self.spare))

    def test_the_key_of_one_caller_says_nothing_about_others(self) -> None:
        """402 and 429 for the caller's own key open no breaker."""
        main = self.enterContext(FakeDeepSeek(responder=lambda _: steps.pop(0) if steps else Answer(content=HELLO)))
        steps: list[Step] = [Failure(402), Failure(429)] * 3
        proxy = self.behind(self.tables(main=main))
        for number in range(6):
            self.ask(proxy, f"chat {number}")
        self.ask(proxy, "another caller", key="sk-other")
        self.assertEqual([7, 6], self.counts(main, self.spare))


class TestModels(UpstreamsTestCase):
    def test_the_chats_of_a_model_that_one_upstream_refuses_stay_at_the_other(self) -> None:
        def respond(payload: dict[str, Any]) -> Step:
            return Answer(content=HELLO) if payload["model"] == "deepseek-flash" else Failure(400, "Model Not Exist")

        main = self.enterContext(FakeDeepSeek(responder=respond))
        proxy = self.behind(self.tables(main=main))
        for _ in range(3):
            self.assertEqual(HELLO, self.ask(proxy, "chat", model="deepseek-v4-pro").text)
        self.ask(proxy, "flash", model="deepseek-flash")
        self.assertEqual([2, 3], self.counts(main, self.spare))

    def test_each_upstream_is_asked_under_its_own_name_for_the_model(self) -> None:
        spare = self.enterContext(FakeDeepSeek(host="openrouter"))
        tables = self.tables(main=self.enterContext(failing(503)), spare=spare)
        tables["spare"] |= {"host": "openrouter", "models": {"deepseek-*": "deepseek/deepseek-*"}}
        self.assertEqual(HELLO, self.ask(self.behind(tables), model="deepseek-v4-pro").text)
        self.assertEqual("deepseek/deepseek-v4-pro", json.loads(spare.seen[-1].body)["model"])

    def test_an_alias_can_name_the_upstream(self) -> None:
        proxy = self.behind(self.tables(), models={"cheap": "spare/deepseek-flash", "gpt-*": "spare/deepseek-flash"})
        for name in ("cheap", "gpt-5", "spare/deepseek-flash", "SPARE/deepseek-flash-high"):
            self.assertEqual(200, self.ask(proxy, name, model=name).status)
            self.assertEqual("deepseek-flash", self.spare.seen[-1].payload["model"])
        self.assertEqual([0, 4], self.counts())

    def test_a_named_upstream_is_the_only_one_asked(self) -> None:
        spare = self.enterContext(failing(503))
        status, message = self.error(self.behind(self.tables(spare=spare)), model="spare/deepseek-flash")
        self.assertEqual((503, 0), (status, len(self.main.seen)))
        self.assertIn("spare", message)

    def test_the_list_of_models_has_what_the_upstreams_serve(self) -> None:
        tables = self.tables()
        tables["main"]["models"] = ["deepseek-v4-pro"]
        tables["spare"]["models"] = {"kimi-k3": "moonshot/kimi-k3", "deepseek-v4-*": "x/*"}
        proxy = self.behind(tables, models={"mine": "spare/kimi-k3"})
        reply = self.round_trip(proxy, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(["deepseek-v4-pro", "kimi-k3", "mine"], [each["id"] for each in reply.value["data"]])
        self.ask(proxy, model="kimi-k3")
        self.assertEqual("moonshot/kimi-k3", self.spare.seen[-1].payload["model"])

    def test_a_model_that_no_upstream_serves(self) -> None:
        tables = self.tables()
        for table in tables.values():
            table["models"] = ["other"]
        status, message = self.error(self.behind(tables), model="deepseek-v4-pro")
        self.assertEqual(404, status)
        self.assertIn("No upstream serves deepseek-v4-pro", message)


class TestWithoutTables(UpstreamsTestCase):
    def test_errors_at_another_host_name_it(self) -> None:
        fake = self.enterContext(FakeDeepSeek(host="openrouter"))
        proxy = self.proxy(upstream_base_url=fake.url, upstream_host="openrouter")
        for step in (Failure(503, body=b"x"), Failure(402), CUT, Raw(CUT.data + b"data: x\n\n")):
            fake.answer(step)
            body = self.ask(proxy, stream=True).body.decode()
            with self.subTest(step=step):
                self.assertNotIn("DeepSeek", body)
                self.assertNotIn("deepseek.com", body)
                self.assertIn("127.0.0.1", body)
