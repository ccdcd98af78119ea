"""Several choices of one request: one call each, one answer."""

import errno
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.features.choices import exchanges as choices
from tests.fake_deepseek import Answer, Failure, FakeDeepSeek, Raw
from tests.support.harness import PATIENCE, SocketTestCase, read_reply, request_bytes
from tests.support.histories import TOOLS
from tests.support.polling import wait_until
from tests.support.threads import run_at_once

BODY = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "n": 3}


class TestChoices(SocketTestCase):
    def answers(self, count: int = 3) -> None:
        self.fake.answer(*(Answer(reasoning=f"R{n}", content=f"C{n}") for n in range(count)))

    def test_every_choice_is_a_call_and_all_are_one_answer(self) -> None:
        self.answers()
        proxy = self.proxy(display_reasoning=False)
        body = self.round_trip(proxy, BODY).value
        self.assertEqual([0, 1, 2], sorted(choice["index"] for choice in body["choices"]))
        said = {(choice["message"]["content"], choice["message"]["reasoning_content"]) for choice in body["choices"]}
        self.assertEqual({(f"C{n}", f"R{n}") for n in range(3)}, said)
        self.assertEqual(3, len(self.fake.accepted))
        self.assertEqual(3, proxy.store.stats().reasonings)
        self.assertNotIn("n", self.fake.accepted[0])

    def test_a_stream_of_several_choices_has_their_indexes_and_one_usage(self) -> None:
        self.answers()
        sock = self.connect(self.proxy(), {**BODY, "stream": True, "stream_options": {"include_usage": True}})
        reply = read_reply(sock)
        self.assertTrue(reply.body.endswith(b"data: [DONE]\n\n"))
        chunks = reply.chunks
        texts = {0: "", 1: "", 2: ""}
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        expected = {f"<details>\n<summary>Thinking</summary>\n\nR{n}\n</details>\n\nC{n}" for n in range(3)}
        self.assertEqual(expected, set(texts.values()))
        self.assertEqual(1, len({chunk["id"] for chunk in chunks}))
        usages = [chunk["usage"] for chunk in chunks if chunk["usage"]]
        self.assertEqual([not chunk["choices"] for chunk in chunks], [bool(chunk["usage"]) for chunk in chunks])
        prompt = usages[0]["prompt_tokens"]
        self.assertEqual((1, 0), (len(usages), prompt % 3))

    def test_a_choice_that_has_the_only_slot_does_not_wait_for_the_client(self) -> None:
        """The other is not accepted before the first has ended, and the client gets nothing before that."""
        self.fake.answer(*[Answer(content="x" * 40, piece=1, pause=0.001)] * 2)
        with mock.patch.object(choices, "_MOST_WAITING", 2):
            proxy = self.proxy(max_upstream_calls=1, queue_timeout=PATIENCE / 2)
            reply = self.round_trip(proxy, request_bytes({**BODY, "n": 2, "stream": True}))
        self.assertEqual((200, 80), (reply.status, reply.body.count(b'"content":"x"')))

    def test_choices_beyond_the_limit_of_calls_are_made_in_turn_and_do_not_wait_for_each_other(self) -> None:
        proxy, replies = self.proxy(max_upstream_calls=2), list[Any]()
        data = request_bytes(BODY)
        run_at_once(lambda _: replies.append(self.round_trip(proxy, data)), range(4))
        self.assertEqual([(200, 3)] * 4, [(reply.status, len(reply.value["choices"])) for reply in replies])

    def test_a_failed_choice_ends_the_request_while_others_still_wait(self) -> None:
        silent = Raw(b"", then_close=False)
        talking = Answer(content="x", stall_after=1)
        for name, stream, steps, status in (
            ("before the answer", True, (Failure(402, "Insufficient Balance"), silent, silent), 402),
            ("before a plain one", False, (silent, Failure(402, "Insufficient Balance"), silent), 402),
            ("midway", True, (talking, Answer(content="y", cut_after=2), talking), None),
            ("midway, others not accepted", True, (silent, Answer(content="y", cut_after=2), silent), 502),
        ):
            with self.subTest(name):
                # Calls that are ended may leave a step behind, so that each case has a DeepSeek of its own.
                fake = self.enterContext(FakeDeepSeek())
                fake.answer(*steps)
                proxy = self.proxy(upstream_base_url=fake.url)
                sock = self.connect(proxy)
                sock.sendall(request_bytes({**BODY, "stream": stream}))
                # The others are silent for minutes.
                got, _, body = read_reply(sock)
                # Midway it depends on whether the others were accepted by then.
                self.assertIn(got, (status,) if status else (200, 502))
                self.assertIn(b'"error"', body)
                limit = proxy.server.services().upstream_client.call_limits.of("deepseek-v4-pro")
                self.assertEqual(0, limit.running_calls)

    def test_one_choice_keeps_the_client_waiting_for_all(self) -> None:
        """Each would send as many heartbeats as one answer; when the first choice is over, the next one sends them."""
        has_waited = threading.Event()

        def deltas() -> Iterator[list[Any]]:
            if threading.current_thread().name == "choice-1":
                yield [Heartbeat("of 1, while 0 sends them")]
                has_waited.set()
                next(thread for thread in threading.enumerate() if thread.name == "choice-0").join(PATIENCE)
                yield [Heartbeat("of 1, alone")]
            else:
                has_waited.wait(PATIENCE)
                yield [Heartbeat("of 0")]

        client = mock.Mock(report=mock.Mock(body_bytes=1), peer=None)
        client.chat.choices = 2
        services = mock.Mock()
        services.config.max_request_body_bytes = 9
        with mock.patch.object(choices.Exchange, "open", return_value=mock.Mock(deltas=deltas)):
            exchange = choices.ChoicesExchange.open(client, services)
            found = [item.line for batch in exchange.deltas() for item in batch if isinstance(item, Heartbeat)]
        self.assertEqual(["of 0", "of 1, alone"], found)

    def test_a_client_that_reads_slowly_has_few_batches_waiting(self) -> None:
        sizes = [0]

        class Counted(SimpleQueue[Any]):
            def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
                super().put(item, block, timeout)
                sizes.append(self.qsize())

        self.fake.answer(*(Answer(reasoning="R", content="x" * 3_000_000, piece=3000) for _ in range(2)))
        with mock.patch.object(choices, "SimpleQueue", Counted), mock.patch.object(choices, "_MOST_WAITING", 4):
            sock = self.connect(self.proxy(), {**BODY, "n": 2, "stream": True})
            sock.recv(1)
            wait_until(lambda: max(sizes) >= 4)
            # What came before both calls were accepted may be more.
            sizes[:] = [0]
            reply = sock.recv(1)
            while not reply.endswith(b"0\r\n\r\n"):
                reply = reply[-5:] + sock.recv(1 << 20)
        self.assertLessEqual(max(sizes), 5)

    def test_choices_without_descriptors_are_told_to_come_again(self) -> None:
        """The client's own connection took the last one."""
        proxy = self.proxy()
        with mock.patch.object(choices, "Wakeup", side_effect=OSError(errno.EMFILE, "")):
            reply = self.round_trip(proxy, BODY)
        self.assertEqual((503, "1"), (reply.status, reply.headers["retry-after"]))

    def test_choices_without_threads_to_run_them_release_their_slots(self) -> None:
        proxy = self.proxy()
        start = threading.Thread.start
        for room in (0, 1, 2):
            left = iter(range(room))

            def limited(thread: threading.Thread, left: Iterator[int] = left) -> None:
                if thread.name.startswith("choice") and next(left, None) is None:
                    raise RuntimeError("can't start new thread")
                start(thread)

            for stream in (True, False):
                with self.subTest(room, stream=stream), mock.patch.object(threading.Thread, "start", limited):
                    sock = self.connect(proxy, {**BODY, "stream": stream})
                    self.assertIn(b"no room for that many answers", read_reply(sock)[2])
                    limits = proxy.server.services().upstream_client.call_limits
                    self.assertEqual(0, limits.of("deepseek-v4-pro").running_calls)
