"""A proxy killed at any moment loses no reasoning of a tool loop's turn that a client got complete.

The real process, killed with SIGKILL at random moments while several chats stream through it. A turn counts from the
moment a client has read its finish_reason; after the next start every one of them must be restored, byte for byte:
the thinking is not shown, and with `reject` a missing reasoning is an error instead of a recovery.

Only a plain answer of the last moment may be lost, for which DeepSeek accepts a filler.
"""

import itertools
import os
import random
import signal
import threading
import unittest
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from typing import Any

from deepseek_cursor_proxy.deepseek.rules import FILLER
from tests.fake_deepseek import Answer, Call, FakeDeepSeek
from tests.support.cursor import WEATHER_TOOLS, CursorClient, echo, run_weather_tool
from tests.support.program import Process, ServeTest, address
from tests.support.width import IS_LONG, width

ROUNDS = width(1, 4, 200)
CHATS = 4
# A chat that has so many turns is checked once more and makes room for another.
LONGEST_CHAT = 16


class Chat:
    """One chat, for as many lives of the proxy as it takes. Used by one thread at a time."""

    def __init__(self, number: int) -> None:
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"You are number {number}."},
            {"role": "user", "content": "What now?"},
        ]
        self.thought: list[str | None] = []
        self.survived = 0

    @property
    def is_over(self) -> bool:
        return len(self.thought) >= LONGEST_CHAT

    def go_on(self, url: str) -> bool:
        """One more turn; whether it was seen complete. A request that was refused is a turn that was lost."""
        with CursorClient(url, tools=WEATHER_TOOLS) as client:
            try:
                answer = client.post(self.messages)
            except (HTTPException, OSError):
                return False
        if answer.status != 200 or (answer.error is not None and not answer.cut):
            raise AssertionError(f"refused after {len(self.thought)} turns: {answer.error}")
        if not answer.is_whole:
            return False
        self.thought.append(answer.reasoning)
        self.messages.append(echo(answer))
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": run_weather_tool(call.name, call.arguments)}
            for call in answer.calls
        ]
        self.messages += results or [{"role": "user", "content": "And now?"}]
        return True


def numbered_answer(numbers: Iterator[int], payload: dict[str, Any]) -> Answer:
    """A call for every question and an answer for every result; thoughts of all sizes, none like another."""
    number = next(numbers)
    thought = f"{number}: " + random.Random(number).randbytes(number * 37 % 3000).hex()
    if payload["messages"][-1]["role"] == "user":
        call = Call(f"call_00_{random.Random(number).randbytes(12).hex()}", "get_location", "{}")
        return Answer(thought, calls=(call,), piece=500)
    return Answer(thought, f"Answer {number}.", piece=500)


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class TestKilledProcess(ServeTest):
    may_fork = True

    def setUp(self) -> None:
        super().setUp()
        self.random = random.Random(4)
        self.numbers = itertools.count()
        self.fake = self.enterContext(FakeDeepSeek(responder=partial(numbered_answer, self.numbers)))
        self.problems: list[BaseException] = []
        self.survived = 0

    def start(self) -> tuple[Process, str]:
        flags = ("--no-display-reasoning", "--missing-reasoning-strategy", "reject")
        process, welcome = self.serve("--base-url", self.fake.url, *flags)
        host, port = address(welcome)
        return process, f"http://{host}:{port}/v1"

    def check(self, chat: Chat, url: str) -> None:
        """Everything the client has seen complete goes out again, as it was thought."""
        before = len(chat.thought)
        self.assertTrue(chat.go_on(url))
        system = chat.messages[0]
        [*_, sent] = (each for each in self.fake.accepted if each["messages"][0] == system)
        restored = [each["reasoning_content"] for each in sent["messages"] if each["role"] == "assistant"]
        self.assertEqual(chat.thought[:before], restored)
        self.survived += before - chat.survived
        chat.survived = before

    def stream(self, chat: Chat, url: str, started: threading.Semaphore) -> None:
        """Turn after turn, until the proxy is gone."""
        try:
            while chat.go_on(url):
                started.release()
        except BaseException as error:
            self.problems.append(error)
        finally:
            started.release()

    def live_and_die(self, chats: list[Chat]) -> None:
        process, url = self.start()
        for chat in chats:
            self.check(chat, url)
        chats[:] = [Chat(next(self.numbers)) if chat.is_over else chat for chat in chats]
        self.fake.forget()
        started = threading.Semaphore(0)
        threads = [threading.Thread(target=self.stream, args=(chat, url, started)) for chat in chats]
        for thread in threads:
            thread.start()
        # Not before all of them are at work, and then at any moment.
        for _ in threads:
            started.acquire()
        threading.Event().wait(self.random.uniform(0, 0.1))
        process.send(signal.SIGKILL)
        for thread in threads:
            thread.join()
        self.assertEqual([], self.problems)
        self.assertEqual(-signal.SIGKILL, process.wait())
        self.assertNotIn("Traceback", process.errors)
        self.assertNotIn("store.sqlite3", process.errors)

    def test_reasoning_of_a_turn_that_a_client_got_complete_survives_sigkill(self) -> None:
        chats = [Chat(next(self.numbers)) for _ in range(CHATS)]
        for _ in range(ROUNDS):
            self.live_and_die(chats)
        process, url = self.start()
        for chat in chats:
            self.check(chat, url)
        process.send(signal.SIGTERM)
        self.assertEqual(0, process.wait())
        self.assertGreater(self.survived, CHATS * ROUNDS)
        if IS_LONG:
            print(f"\nkilled {ROUNDS} times, {self.survived} turns that clients had seen complete, none lost")

    def test_a_plain_answer_survives_sigterm_and_its_chat_also_sigkill(self) -> None:
        for end in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(end):
                chat = Chat(next(self.numbers))
                self.fake.answer(Answer("Hm.", "Hi."), Answer("Hm again.", "Hi again."))
                process, url = self.start()
                self.assertTrue(chat.go_on(url))
                process.send(end)
                process.wait()
                process, url = self.start()
                self.assertTrue(chat.go_on(url))
                sent = self.fake.accepted[-1]["messages"][2]["reasoning_content"]
                self.assertIn(sent, ("Hm.",) if end is signal.SIGTERM else ("Hm.", FILLER))
                process.send(signal.SIGTERM)
                process.wait()
