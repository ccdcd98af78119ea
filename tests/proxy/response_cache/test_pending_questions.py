"""Identical questions at the same time over real sockets: one call for all, whoever fails or leaves."""

import contextlib
import socket
import threading
from typing import Any

from tests.fake_deepseek import Answer, Failure
from tests.support.cache_client import ANSWER, APIS, PATHS, CacheTestCase, body, read
from tests.support.harness import PATIENCE, RawReply, RunningProxy, read_reply, read_until, request_bytes
from tests.support.polling import wait_until
from tests.support.resources import ResourceBaseline

HELD = Answer(reasoning="A thought.", content="The answer.", piece=4, stall_after=3)


class PendingTestCase(CacheTestCase):
    def waiting(self, proxy: RunningProxy) -> int:
        """How many questions wait for the answer of another."""
        questions = proxy.server.services().response_cache.pending._questions
        return sum(len(question.waiters) for question in [*questions.values()])

    def begin(self, proxy: RunningProxy, api: str = "chat", *, stream: bool = True, **fields: Any) -> socket.socket:
        """The connection of a client that has asked."""
        data = {**body(api), "stream": stream, "cache": True, **fields}
        sock = self.enterContext(socket.create_connection(proxy.address, timeout=PATIENCE))
        sock.sendall(request_bytes(data, path=PATHS[api]))
        return sock

    def lead(self, proxy: RunningProxy, step: Any = HELD, **fields: Any) -> socket.socket:
        """The connection of a client whose question DeepSeek has, and does not go on to answer."""
        self.fake.answer(step)
        sock = self.begin(proxy, **fields)
        self.fake.stalls.get(timeout=PATIENCE)
        return sock

    def follow(self, proxy: RunningProxy, count: int, **fields: Any) -> list[socket.socket]:
        """Connections of further clients, which wait for the same answer."""
        before = self.waiting(proxy)
        socks = [self.begin(proxy, **fields) for _ in range(count)]
        wait_until(lambda: self.waiting(proxy) == before + count)
        return socks

    def replies(self, *socks: socket.socket) -> list[RawReply]:
        return [read_reply(sock) for sock in socks]


class TestPendingQuestions(PendingTestCase):
    def test_32_identical_questions_at_once_are_one_call(self) -> None:
        for api in APIS:
            with self.subTest(api):
                proxy = self.cache_proxy()
                self.fake.forget()
                self.fake.release.clear()
                leader = self.lead(proxy, Answer(**{**vars(ANSWER), "stall_after": 4}), api=api)
                followers = self.follow(proxy, 31, api=api)
                self.fake.release.set()
                replies = self.replies(leader, *followers)
                self.assertEqual(1, len(self.fake.seen))
                self.assertEqual(["miss"] + ["hit"] * 31, self.states(*replies))
                said = [read_said(api, reply) for reply in replies]
                self.assertEqual([said[0]] * 32, said)
                self.assertEqual("The answer.", said[0][1])
                self.assertEqual({}, proxy.server.services().response_cache.pending._questions)

    def test_plain_and_streamed_ones_share_a_call(self) -> None:
        proxy = self.cache_proxy()
        leader = self.lead(proxy, stream=False)
        followers = [*self.follow(proxy, 2, stream=True), *self.follow(proxy, 2, stream=False)]
        self.fake.release.set()
        replies = self.replies(leader, *followers)
        self.assertEqual(["The answer."] * 5, [reply.text for reply in replies])
        self.assertEqual(1, len(self.fake.seen))

    def test_other_keys_questions_and_those_that_do_not_ask_make_their_own_calls(self) -> None:
        proxy = self.cache_proxy()
        leader = self.lead(proxy)
        others = [{"cache": False}, {"temperature": 1.5}]
        for fields in others:
            self.assertEqual("Hello.", self.ask(proxy, "chat", **fields).text)
        self.assertEqual("Hello.", self.ask(proxy, "chat", key="sk-other").text)
        self.assertEqual((4, 0), (len(self.fake.seen), self.waiting(proxy)))
        self.fake.release.set()
        self.assertEqual("The answer.", self.replies(leader)[0].text)

    def test_waiters_get_heartbeats(self) -> None:
        marks = {"chat": b'"content":""', "responses": b"response.in_progress", "messages": b"event: ping"}
        for api in APIS:
            with self.subTest(api):
                proxy = self.cache_proxy(heartbeat_interval=0.05)
                self.fake.release.clear()
                self.fake.forget()
                leader = self.lead(proxy, Answer(reasoning="A thought.", content="The answer.", stall_after=2), api=api)
                streamed, plain = self.follow(proxy, 1, api=api)[0], self.follow(proxy, 1, api=api, stream=False)[0]
                beginning = read_until(streamed, b"\r\n\r\n")
                self.assertIn(b"X-Cache: shared", beginning)
                if marks[api] not in beginning:
                    beginning += read_until(streamed, marks[api])
                blanks = read_until(plain, b"\r\n\r\n")
                self.assertIn(b"X-Cache: shared", blanks)
                blanks += read_until(plain, b" ") if b"\r\n\r\n1\r\n " not in blanks else b""
                self.fake.release.set()
                read_reply(leader)
                whole = beginning + read_until(streamed, b"\r\n0\r\n\r\n")
                self.assertIn(b"The answer.", whole)
                self.assertIn(b"The answer.", read_until(plain, b"\r\n0\r\n\r\n"))
                self.assertEqual(1, len(self.fake.seen))

    def test_many_streams_that_wait_get_heartbeats_and_the_answer_once(self) -> None:
        proxy = self.cache_proxy(heartbeat_interval=0.05)
        leader = self.lead(proxy)
        followers = self.follow(proxy, 24)
        for sock in followers:
            read_until(sock, b'"content":""')
        self.fake.release.set()
        read_reply(leader)
        for sock in followers:
            rest = read_until(sock, b"[DONE]")
            self.assertEqual((1, 1), (rest.count(b'"content":"The "'), rest.count(b'"finish_reason":"stop"')))
        self.assertEqual(1, len(self.fake.seen))


def read_said(api: str, reply: RawReply) -> tuple[Any, ...]:
    """What an answer says, without the tokens, which a chat has not asked for."""
    if api == "chat":
        deltas = [choice["delta"] for chunk in reply.chunks for choice in chunk["choices"]]
        return "".join(delta.get("reasoning_content") or "" for delta in deltas), reply.text
    return read(api, reply)[:2]


class TestLeaders(PendingTestCase):
    def test_when_the_leader_leaves_a_waiter_takes_over(self) -> None:
        proxy = self.cache_proxy()
        start = ResourceBaseline(proxy.address)
        leader = self.lead(proxy)
        followers = self.follow(proxy, 4)
        self.fake.answer(Answer(reasoning="R.", content="Second."))
        leader.close()
        replies = self.replies(*followers)
        for sock in followers:
            sock.close()
        start.assert_restored(self)
        self.assertEqual({}, proxy.server.services().response_cache.pending._questions)
        self.assertEqual(["Second."] * 4, [reply.text for reply in replies])
        self.assertEqual(["hit", "hit", "hit", "miss"], sorted(map(str, self.states(*replies))))
        self.assertEqual(2, len(self.fake.seen))

    def test_when_the_call_of_the_leader_breaks_a_waiter_takes_over(self) -> None:
        proxy = self.cache_proxy()
        self.fake.answer(Answer(reasoning="R.", content="Half of it", piece=1, pause=0.05, cut_after=12))
        leader = self.begin(proxy)
        read_until(leader, b"data: ")
        followers = self.follow(proxy, 3)
        self.fake.answer(Answer(reasoning="R.", content="Second."))
        read_until(leader, b'"error"')
        self.assertEqual(["Second."] * 3, [reply.text for reply in self.replies(*followers)])
        self.assertEqual(2, len(self.fake.seen))

    def test_refusals_are_not_shared_but_end(self) -> None:
        proxy = self.cache_proxy()
        self.fake.answer(*[Failure(402, "Insufficient Balance")] * 8)
        replies: list[RawReply] = []
        threads = [
            threading.Thread(target=lambda: replies.append(self.post(proxy, "chat", body("chat", cache=True))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([402] * 8, [reply.status for reply in replies])
        self.assertEqual(8, len(self.fake.seen))

    def test_an_answer_that_is_not_kept_is_not_shared(self) -> None:
        proxy = self.cache_proxy()
        leader = self.lead(proxy, Answer(content="Too long", finish_reason="length", piece=4, stall_after=2))
        followers = self.follow(proxy, 2)
        self.fake.answer(Answer(content="Second."))
        self.fake.release.set()
        self.assertEqual(["Second."] * 2, [reply.text for reply in self.replies(*followers)])
        self.assertIn("Too long", read_reply(leader).text)
        self.assertEqual(2, len(self.fake.seen))

    def test_a_waiter_whose_reply_has_begun_takes_over_and_nothing_is_doubled(self) -> None:
        proxy = self.cache_proxy(heartbeat_interval=0.05)
        leader = self.lead(proxy)
        (follower,) = self.follow(proxy, 1)
        beginning = read_until(follower, b'"content":""')
        self.fake.answer(Answer(reasoning="R.", content="Second."))
        leader.close()
        body = beginning + read_until(follower, b"[DONE]")
        self.assertEqual(1, body.count(b"Second."))
        self.assertNotIn(b"The ans", body)
        # Now it is kept like any other.
        self.assertEqual("hit", self.ask(proxy, "chat").headers["x-cache"])

    def test_a_waiter_whose_reply_has_begun_gets_an_error_in_it_when_its_own_call_fails(self) -> None:
        proxy = self.cache_proxy(heartbeat_interval=0.05)
        leader = self.lead(proxy)
        (follower,) = self.follow(proxy, 1)
        beginning = read_until(follower, b'"content":""')
        self.fake.answer(Failure(402, "Insufficient Balance"))
        leader.close()
        body = beginning + read_until(follower, b"[DONE]")
        self.assertEqual(1, body.count(b'"error"'))
        self.assertEqual("miss", self.ask(proxy, "chat").headers["x-cache"])

    def test_a_waiter_that_leaves_changes_nothing_for_the_others(self) -> None:
        proxy = self.cache_proxy()
        start = ResourceBaseline(proxy.address)
        leader = self.lead(proxy)
        first, second = self.follow(proxy, 2)
        first.close()
        wait_until(lambda: self.waiting(proxy) == 1)
        self.fake.release.set()
        self.assertEqual(["The answer."] * 2, [reply.text for reply in self.replies(leader, second)])
        self.assertEqual(1, len(self.fake.seen))
        leader.close()
        second.close()
        start.assert_restored(self)
        left = [each for each in proxy.server.services().request_log.ended() if each.status == 499]
        self.assertEqual(1, len(left))

    def test_a_proxy_that_stops_ends_those_who_wait(self) -> None:
        proxy = self.cache_proxy(shutdown_grace=0.0)
        leader = self.lead(proxy)
        followers = self.follow(proxy, 2)
        closing = threading.Thread(target=proxy.close)
        closing.start()
        for sock in (leader, *followers):
            with contextlib.suppress(ConnectionError):
                while sock.recv(65536):
                    pass
        closing.join(PATIENCE)
        self.assertFalse(closing.is_alive())
