"""Pictures in words: Flash describes each new picture once, and the model that sees none reads the text."""

import re
import threading
from typing import Any, ClassVar
from unittest import mock

from deepseek_cursor_proxy.chat_memory import NO_MEMORY, ChatMemory
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.exchange import pictures, services
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.observers.events import Result
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw
from tests.support.harness import RunningProxy, read_until, request_bytes
from tests.support.histories import TOOLS
from tests.support.pictures import (
    FLASH,
    PATHS,
    PRO,
    QUESTIONS,
    RESULTS,
    PictureTestCase,
    call,
    description,
    part,
    result,
    user,
)
from tests.support.polling import wait_until
from tests.support.resources import descriptors

CONSOLE = "deepseek_cursor_proxy.observers.console"


class DescribedTestCase(PictureTestCase):
    def describing(self, store: ReasoningStore | None = None, **settings: Any) -> RunningProxy:
        return self.proxy(store, **{"pictures": "describe", **settings})


class TestPlace(DescribedTestCase):
    def test_the_description_is_where_the_picture_was(self) -> None:
        proxy = self.describing()
        for number, (api, body) in enumerate(QUESTIONS.items()):
            for stream in (False, True):
                with self.subTest(api, stream=stream):
                    name = f"{number} {stream}"
                    self.post(proxy, api, {**body(name), "stream": stream})
                    text = self.sent()[-1][-1]["content"]
                    self.assertTrue(text.startswith("Look.\n[image: "), text)
                    self.assert_described(text, name)
        self.assertEqual([], self.fake.refused)

    def test_pictures_of_tools_are_described_as_well(self) -> None:
        proxy = self.describing(missing_reasoning_strategy="placeholder")
        for api, body in RESULTS.items():
            with self.subTest(api):
                self.post(proxy, api, body(api))
                *_, message = self.sent()[-1]
                self.assertEqual("tool", message["role"])
                self.assertTrue(message["content"].startswith("Done.\n[image: "))
                self.assert_described(message["content"], api)

    def test_another_upstream_describes_it_when_one_fails(self) -> None:
        with FakeDeepSeek(responder=lambda _: Failure(503)) as busy:
            tables = {"busy": {"base_url": busy.url}, "spare": {"base_url": self.fake.url, "priority": 2}}
            proxy = self.describing(upstreams=tables)
            api, body = next(iter(QUESTIONS.items()))
            self.post(proxy, api, body("name"))
            self.assert_described(self.sent()[-1][-1]["content"], "name")
            self.assertEqual(2, len(busy.seen))

    def test_an_upstream_that_describes_again_is_asked_first_again(self) -> None:
        with FakeDeepSeek() as eyes:
            tables = {
                "eyes": {"base_url": eyes.url, "models": [FLASH]},
                "main": {"base_url": self.fake.url, "priority": 2},
            }
            proxy = self.describing(upstreams=tables)
            breaker = proxy.server.services().upstreams.all[0].breaker
            assert breaker is not None
            breaker.record_failure(b"", is_sure=True)
            # The probe is due.
            breaker._probe_at = 0.0
            for name in ("first", "second"):
                self.chat(proxy, user("Look.", part(name)))
            self.assertEqual((2, "closed"), (len(eyes.seen), breaker.state))

    def test_the_same_picture_is_described_once_on_all_apis(self) -> None:
        proxy = self.describing()
        for bodies in (QUESTIONS, RESULTS):
            for api, body in bodies.items():
                self.post(proxy, api, body("the same"))
        self.assertEqual((1, 6), (len(self.descriptions()), len(self.sent())))

    def test_the_call_asks_flash_without_thinking(self) -> None:
        self.chat(self.describing(), user("Look.", part("a")))
        (asked,) = self.descriptions()
        self.assertEqual((FLASH, {"type": "disabled"}), (asked["model"], asked["thinking"]))
        self.assertNotIn("tools", asked)
        self.assertNotIn("Look.", str(asked))
        self.assertEqual(part("a"), asked["messages"][-1]["content"][-1])

    def test_urls_and_uploads_are_described_too(self) -> None:
        remote = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
        upload = {"type": "file", "file": {"file_id": "file-1"}}
        inline = {"type": "file", "file": {"file_data": part("b")["image_url"]["url"], "filename": "b.png"}}
        document = {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "c.pdf"}}
        self.chat(self.describing(), user(remote, upload, inline, document))
        text = self.sent()[-1][-1]["content"]
        self.assertEqual(3, text.count(" in words:\n"), text)
        self.assertIn(description("b"), text)
        self.assertRegex(text, r"\n\[file: c\.pdf, application/pdf, 4 B, [0-9a-f]{12}\]$")

    def test_a_model_that_sees_gets_the_picture(self) -> None:
        self.chat(self.describing(), user("Look.", part("a")), model=FLASH)
        self.assertEqual([], self.descriptions())
        self.assertEqual(part("a"), self.sent(FLASH)[-1][-1]["content"][-1])

    def test_by_default_pictures_are_named(self) -> None:
        self.chat(self.running, user("Look.", part("a")))
        self.assertEqual(1, len(self.fake.accepted))
        self.assert_named(self.sent()[-1][-1]["content"])

    def test_several_answers_share_one_description(self) -> None:
        self.chat(self.describing(), user("Look.", part("a")), n=3)
        self.assertEqual((1, 3), (len(self.descriptions()), len(self.sent())))
        for messages in self.sent():
            self.assert_described(messages[-1]["content"], "a")

    def test_the_native_responses_api_gets_descriptions_too(self) -> None:
        self.post(self.describing(responses_upstream="native"), "responses", QUESTIONS["responses"]("a"))
        self.assert_described(str(self.sent()[-1][-1]["content"]).replace("\\n", "\n"), "a")

    def test_background_responses_and_compactions_get_descriptions_too(self) -> None:
        proxy = self.describing()
        body = {"model": PRO, **QUESTIONS["responses"]("a")}
        queued = self.round_trip(proxy, request_bytes({**body, "background": True}, path=PATHS["responses"])).value
        wait_until(lambda: len(self.sent()) == 1)
        self.assertEqual("queued", queued["status"])
        self.round_trip(proxy, request_bytes(body, path="/v1/responses/compact"))
        for messages in self.sent():
            self.assertIn(description("a"), str(messages))
        self.assertEqual(1, len(self.descriptions()))

    def test_counting_tokens_makes_no_call(self) -> None:
        proxy = self.describing()
        for api, path in (("messages", "/v1/messages/count_tokens"), ("responses", "/v1/responses/input_tokens")):
            body = {"model": PRO, **QUESTIONS[api]("a")}
            self.assertEqual(200, self.round_trip(proxy, request_bytes(body, path=path)).status)
        self.assertEqual([], self.fake.seen)

    def test_a_transcript_has_the_description(self) -> None:
        lost = {name: value for name, value in call().items() if name != "reasoning_content"}
        self.chat(self.describing(), user("Look.", part("a")), lost, result("Done."), tools=TOOLS)
        self.assertIn("transcript", self.sent()[-1][0]["content"])
        self.assert_described(self.sent()[-1][0]["content"], "a")


class TestMemory(DescribedTestCase):
    def test_the_prefix_stays_over_ten_turns_with_pictures(self) -> None:
        self.play_ten_turns(self.describing())

    def test_the_chat_memory_changes_no_byte_of_a_chat_with_pictures(self) -> None:
        memory, bodies = ChatMemory(), []
        for each in (NO_MEMORY, memory):
            with mock.patch.object(services, "ChatMemory", return_value=each):
                self.play_ten_turns(self.describing())
            bodies.append([seen.body for seen in self.fake.seen])
            self.fake.forget()
        self.assertEqual(*bodies)
        self.assertIn("describe", {entry.stage.name for entry in memory._entries})

    def play_ten_turns(self, proxy: RunningProxy) -> None:
        """Ten turns with a picture in the question and one in the result of a tool."""
        history: list[dict[str, Any]] = []
        before: list[dict[str, Any]] = []
        for turn in range(10):
            call_id = f"call_{turn:02}_abcdefghijklmnop123456"
            self.fake.answer(Answer(reasoning=f"Thought {turn}.", calls=(Call(call_id, "read_file", "{}"),)))
            history.append(user(f"Question {turn}.", part(f"question {turn}")))
            for added in ([], [call(call_id), result("Done.", part(f"result {turn}"), call_id=call_id)]):
                history += [
                    {**each, "reasoning_content": None} if each["role"] == "assistant" else each for each in added
                ]
                self.chat(proxy, *history, tools=TOOLS, stream=bool(turn % 2))
                sent = self.sent()[-1]
                self.assertEqual(before, sent[: len(before)])
                before = sent
            history.append({"role": "assistant", "content": "Hello."})
        self.assertEqual((20, 20), (len(self.descriptions()), len(self.sent())))
        self.assertEqual([], self.fake.refused)

    def test_a_description_survives_a_restart(self) -> None:
        path = self.folder / "store.sqlite3"
        for _ in range(2):
            proxy = RunningProxy(self.fake.url, ReasoningStore(path), pictures="describe")
            try:
                self.chat(proxy, user("Look.", part("a")))
            finally:
                proxy.close()
        first, second = self.sent()
        self.assertEqual(first, second)
        self.assertEqual(1, len(self.descriptions()))

    def test_a_description_of_one_key_is_never_shown_to_another(self) -> None:
        proxy = self.describing()
        words = iter(("what the first saw", "what the second saw"))
        self.fake.describe = lambda payload: Answer(content=next(words)) if payload["model"] == FLASH else None
        for key in ("sk-one", "sk-two", "sk-one", "sk-two"):
            self.chat(proxy, user("Look.", part("a")), key=key)
        texts = [messages[-1]["content"] for messages in self.sent()]
        self.assertEqual(["first", "second"] * 2, [re.findall(r"what the (\w+) saw", text)[0] for text in texts])
        keys = [seen.headers["authorization"] for seen in self.fake.seen if seen.payload["model"] == FLASH]
        self.assertEqual(["Bearer sk-one", "Bearer sk-two"], keys)

    def test_a_turn_keeps_its_reasoning_when_the_setting_changes(self) -> None:
        store = ReasoningStore(self.folder / "store.sqlite3")
        # Without the id of a call only the whole history identifies it.
        self.fake.answer(Answer(reasoning="A thought.", content="I see."))
        history = [user("Look.", part("a")), {"role": "assistant", "content": "I see."}, user("And?")]
        self.chat(self.proxy(store), history[0], tools=TOOLS)
        self.chat(self.describing(store), *history, tools=TOOLS)
        self.assert_upstream_saw("A thought.")
        self.assert_described(self.sent()[-1][0]["content"], "a")

    def test_a_store_that_cannot_be_written_costs_no_second_call(self) -> None:
        proxy = self.describing()
        self.chat(proxy, user("Look."))
        # Every store of the file warns in its own words.
        self.enterContext(self.assertLogs("deepseek_cursor_proxy.storage", "WARNING"))
        self.addCleanup(proxy.store.close)
        proxy.store.database.close()
        for _ in range(2):
            self.chat(proxy, user("Look.", part("a")))
            self.assert_described(self.sent()[-1][-1]["content"], "a")
        self.assertEqual(1, len(self.descriptions()))


class TestAtOnce(DescribedTestCase):
    def waiters(self, proxy: RunningProxy) -> int:
        return sum(len(each.waiters) for each in [*proxy.server.services().shared_calls._calls.values()])

    def test_two_requests_with_the_same_picture_make_one_call(self) -> None:
        gate, proxy = self.gate(), self.describing()
        pending = [self.post_on_thread(proxy, api, QUESTIONS[api]("a")) for api in ("chat", "messages")]
        wait_until(lambda: self.waiters(proxy) == 2)
        gate.opened.set()
        self.assertEqual([200, 200], [each.get().status for each in pending])
        self.assertEqual(1, len(self.descriptions()))
        for messages in self.sent():
            self.assert_described(messages[-1]["content"], "a")

    def test_the_pictures_of_a_request_are_described_at_once_within_bounds(self) -> None:
        gate, proxy = self.gate(), self.describing()
        names = [f"picture {number}" for number in range(pictures._MOST_NEW + 5)]
        pending = self.post_on_thread(proxy, "chat", {"messages": [user(*map(part, names))]})
        for _ in range(pictures._MOST_AT_ONCE):
            self.assertTrue(gate.entered.acquire(timeout=10))
        wait_until(lambda: self.waiters(proxy) == pictures._MOST_AT_ONCE)
        gate.opened.set()
        self.assertEqual(200, pending.get().status)
        self.assertLessEqual(gate.most_waiting, pictures._MOST_AT_ONCE)
        text = self.sent()[-1][-1]["content"]
        # The newest first; the others are named, and described with the next request.
        self.assertEqual([name in names[5:] for name in names], [description(name) in text for name in names])
        self.chat(proxy, user(*map(part, names)))
        self.assertEqual(len(names), len(self.descriptions()))

    def test_a_client_that_leaves_ends_the_call(self) -> None:
        self.fake.describe = lambda payload: Answer(content="x", stall_after=0) if payload["model"] == FLASH else None
        proxy = self.describing()
        for api in PATHS:
            for stream in (False, True):
                with self.subTest(api, stream=stream):
                    self.fake.forget()
                    body = {"model": PRO, **QUESTIONS[api](f"{api} {stream}"), "stream": stream}
                    with self.connect(proxy, request_bytes(body, path=PATHS[api])):
                        self.fake.stalls.get(timeout=10)
                    self.assertTrue(self.fake.wait_for_hangup())
                    self.assertEqual([], self.sent())
        wait_until(lambda: proxy.server.services().upstream.call_limits.of(FLASH).running_calls == 0)

    def test_a_client_that_leaves_after_a_heartbeat_is_reported_once(self) -> None:
        gate, proxy = self.gate(), self.describing(heartbeat_interval=0.1)
        for stream in (False, True):
            body = {"model": PRO, **QUESTIONS["chat"](f"{stream}"), "stream": stream}
            with self.connect(proxy, request_bytes(body)) as sock:
                read_until(sock, b"\r\n\r\n")
        log = proxy.server.services().request_log
        wait_until(lambda: len(log.ended()) == 2)
        gate.opened.set()
        self.assertEqual([(Result.CLIENT_LEFT, 499)] * 2, [(each.result, each.status) for each in log.ended()])
        self.assertEqual([], self.sent())

    def test_one_client_that_leaves_does_not_end_the_call_of_another(self) -> None:
        gate, proxy = self.gate(), self.describing()
        with self.connect(proxy, request_bytes({"model": PRO, **QUESTIONS["chat"]("a")})):
            wait_until(lambda: self.waiters(proxy) == 1)
            pending = self.post_on_thread(proxy, "messages", QUESTIONS["messages"]("a"))
            wait_until(lambda: self.waiters(proxy) == 2)
        wait_until(lambda: self.waiters(proxy) == 1)
        gate.opened.set()
        self.assertEqual(200, pending.get().status)
        self.assertEqual((1, 1), (len(self.descriptions()), len(self.sent())))

    def test_a_proxy_that_stops_ends_the_call(self) -> None:
        self.fake.describe = lambda payload: Answer(content="x", stall_after=0) if payload["model"] == FLASH else None
        proxy = self.describing()
        pending = self.post_on_thread(proxy, "chat", QUESTIONS["chat"]("a"))
        self.fake.stalls.get(timeout=10)
        proxy.server.shutdown()
        proxy.server.drain(0)
        self.assertEqual(503, pending.get().status)
        self.assertTrue(self.fake.wait_for_hangup())

    def test_a_proxy_that_stops_ends_a_reply_that_has_begun(self) -> None:
        self.gate()
        proxy = self.describing(heartbeat_interval=0.1)
        sock = self.connect(proxy, request_bytes({"model": PRO, **QUESTIONS["chat"]("a"), "stream": True}))
        read_until(sock, b"chatcmpl-waiting")
        proxy.server.shutdown()
        proxy.server.drain(0)
        self.assertIn(b'"error"', read_until(sock, b"\r\n0\r\n\r\n"))
        (record,) = proxy.server.services().request_log.ended()
        self.assertEqual((Result.FAILED, 503), (record.result, record.status))

    def test_no_threads_and_descriptors_are_left_behind(self) -> None:
        proxy = self.describing(heartbeat_interval=0.1)
        self.chat(proxy, user("Look.", part("first")))
        before, gate = descriptors(), self.gate()
        for number, (api, body) in enumerate(QUESTIONS.items()):
            request = request_bytes({"model": PRO, **body(f"{number}"), "stream": True}, path=PATHS[api])
            left = self.connect(proxy, request)
            self.assertTrue(gate.entered.acquire(timeout=10))
            read_until(left, b"\r\n\r\n")
            left.close()
        gate.opened.set()
        for number in range(20):
            self.fake.answer(*[Failure(500)] * (number % 2))
            self.round_trip(proxy, {"model": PRO, "messages": [user(part(f"{number} a"), part(f"{number} b"))]})
        # Each request and each call has two; kept connections to DeepSeek have a few.
        wait_until(lambda: descriptors() < before + 20)
        wait_until(lambda: "shared-call" not in {thread.name for thread in threading.enumerate()})


class TestHeartbeats(DescribedTestCase):
    MARKS: ClassVar = {"chat": b"chatcmpl-waiting", "responses": b"response.in_progress", "messages": b"event: ping"}

    def test_a_stream_has_heartbeats_while_pictures_are_described(self) -> None:
        for api, mark in self.MARKS.items():
            with self.subTest(api):
                gate, proxy = self.gate(), self.describing(heartbeat_interval=0.1)
                body = {"model": PRO, **QUESTIONS[api](api), "stream": True}
                sock = self.connect(proxy, request_bytes(body, path=PATHS[api]))
                head = read_until(sock, mark)
                self.assertEqual(1, gate.waiting)
                gate.opened.set()
                rest = read_until(sock, b"\r\n0\r\n\r\n")
                self.assertIn(b"Hello", (head + rest).replace(b'"', b""))
                self.assertIn(description(api), str(self.sent()[-1]))

    def test_a_plain_reply_begins_with_blanks_while_pictures_are_described(self) -> None:
        gate, proxy = self.gate(), self.describing(heartbeat_interval=0.1)
        sock = self.connect(proxy, request_bytes({"model": PRO, **QUESTIONS["chat"]("a")}))
        self.assertIn(b"200 OK", read_until(sock, b"\r\n1\r\n \r\n"))
        gate.opened.set()
        self.assertIn(b"Hello.", read_until(sock, b"\r\n0\r\n\r\n"))

    def test_a_refusal_after_heartbeats_is_an_error_in_the_stream(self) -> None:
        gate, proxy = self.gate(), self.describing(heartbeat_interval=0.1, pin_key="always")
        sock = self.connect(proxy, request_bytes({"model": PRO, **QUESTIONS["chat"]("a"), "stream": True}))
        read_until(sock, self.MARKS["chat"])
        self.fake.answer(Failure(402, "Insufficient Balance"))
        gate.opened.set()
        self.assertIn(b"Insufficient Balance", read_until(sock, b"\r\n0\r\n\r\n"))
        # A key that DeepSeek has not accepted is not pinned.
        self.chat(proxy, user("Hi."), key="sk-other")


class TestFailures(DescribedTestCase):
    def failing(self, *steps: Any) -> None:
        """The next descriptions are these steps, those after them as always."""
        queue, describe, lock = list(steps), self.fake.describe, threading.Lock()

        def fail(payload: dict[str, Any]) -> Any:
            with lock:
                is_due = queue and describe(payload) is not None
                return queue.pop(0) if is_due else describe(payload)

        self.fake.describe = fail

    def test_a_picture_that_cannot_be_described_is_named_and_tried_again(self) -> None:
        steps = {
            "busy": Failure(429, "Too many requests"),
            "broken": Failure(500),
            "refused": Failure(400, "Unsupported image format"),
            "no key": Failure(401, "Authentication Fails"),
            "empty": Answer(content=" \n"),
            "filtered": Answer(content="", finish_reason="content_filter"),
            "cut": Answer(content="Half", cut_after=20),
            "not JSON": Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"),
            "nothing": Raw(b""),
        }
        proxy = self.describing()
        for name, step in steps.items():
            with self.subTest(name):
                self.failing(step)
                for stream in (False, True):
                    self.chat(proxy, user("Look.", part(name)), stream=stream)
                named, described = self.sent()[-2:]
                self.assert_named(named[-1]["content"])
                self.assert_described(described[-1]["content"], name)

    def test_a_slow_description_is_given_up(self) -> None:
        self.failing(Answer(content="x", stall_after=0))
        proxy = self.describing()
        has_stalled = threading.Event()

        class Patience(Deadline):
            """Is over only when Flash has been asked."""

            @property
            def is_over(self) -> bool:
                return has_stalled.is_set() and super().is_over

        patches = (
            mock.patch.object(pictures, "_MAX_SECONDS", 0.01),
            mock.patch.object(pictures, "Deadline", Patience),
        )
        with self.assertLogs(CONSOLE, "INFO") as logged, patches[0], patches[1]:
            pending = self.post_on_thread(proxy, "chat", QUESTIONS["chat"]("a"))
            self.fake.stalls.get(timeout=10)
            has_stalled.set()
            self.assertEqual(200, pending.get().status)
            self.assertTrue(self.fake.wait_for_hangup())
            wait_until(lambda: "no description within" in str(logged.output))
        self.assert_named(self.sent()[-1][-1]["content"])
        self.chat(proxy, user("Look.", part("a")))
        self.assert_described(self.sent()[-1][-1]["content"], "a")

    def test_a_busy_flash_is_tried_again_within_the_budget(self) -> None:
        self.failing(Failure(429), Failure(503))
        self.chat(self.describing(retry_budget=5), user("Look.", part("a")))
        self.assert_described(self.sent()[-1][-1]["content"], "a")

    def test_one_picture_that_fails_leaves_the_others(self) -> None:
        self.failing(Failure(400, "no"))
        self.chat(self.describing(), user(part("a")), user(part("b")))
        texts = [message["content"] for message in self.sent()[-1]]
        self.assertEqual([False, True], sorted("in words" in text for text in texts))

    def test_the_console_tells_a_description_and_a_failure_once(self) -> None:
        proxy = self.describing()
        # From here on the key is known.
        self.chat(proxy, user("Hi."))
        self.failing(*[Failure(429, "Too many requests")] * 3)
        with self.assertLogs(CONSOLE, "INFO") as logged:
            for _ in range(5):
                self.chat(proxy, user("Look.", part("a")))
        lines = [record.getMessage() for record in logged.records if "picture" in record.getMessage()]
        self.assertEqual(2, len(lines), lines)
        self.assertRegex(lines[0], r"^─ picture not described by deepseek-flash: .*\(429\)")
        self.assertRegex(
            lines[1], r"^─ picture described by deepseek-flash · \d+ in \(0 % cached\) · \d+ out · \d+\.\d s$"
        )

    def test_a_key_in_a_refusal_is_not_logged(self) -> None:
        self.failing(Failure(401, "Your api key: sk-0123456789abcdef0123456789 is invalid"))
        with self.assertLogs(CONSOLE, "INFO") as logged:
            self.chat(self.describing(), user("Look.", part("a")), key="sk-0123456789abcdef0123456789")
        self.assertNotIn("sk-0123456789", str(logged.output))

    def test_descriptions_wait_for_a_slot_of_flash(self) -> None:
        gate = self.gate()
        self.enterContext(mock.patch.object(ProxyConfig, "most_calls", return_value=1))
        proxy = self.describing(queue_timeout=10)
        pending = self.post_on_thread(proxy, "chat", {"messages": [user(part("a"), part("b"))]})
        self.assertTrue(gate.entered.acquire(timeout=10))
        wait_until(lambda: proxy.server.services().upstream.call_limits.of(FLASH).queued_calls == 1)
        gate.opened.set()
        self.assertEqual(200, pending.get().status)
        self.assertEqual(1, gate.most_waiting)


class TestOtherHosts(DescribedTestCase):
    MODEL = "deepseek/deepseek-v4-pro"

    def at_openrouter(self, **settings: Any) -> RunningProxy:
        self.fake = self.enterContext(FakeDeepSeek(host="openrouter"))
        return self.describing(upstream_host="openrouter", upstream_model=self.MODEL, **settings)

    def test_without_a_model_that_sees_pictures_are_named_and_the_console_says_so(self) -> None:
        proxy = self.at_openrouter()
        with self.assertLogs("deepseek_cursor_proxy.exchange.services", "WARNING") as logged:
            for _ in range(2):
                self.chat(proxy, user("Look.", part("a")), model=self.MODEL)
        (line,) = [record.getMessage() for record in logged.records]
        self.assertIn("Set picture_model", line)
        self.assertEqual(2, len(self.fake.accepted))
        self.assert_named(self.sent()[-1][-1]["content"])

    def test_a_model_that_is_set_describes(self) -> None:
        self.chat(
            self.at_openrouter(picture_model="deepseek/deepseek-flash"), user("Look.", part("a")), model=self.MODEL
        )
        self.assert_described(self.sent()[-1][-1]["content"], "a")
        self.assertIn(b'"model":"deepseek/deepseek-flash"', self.fake.seen[0].body)
