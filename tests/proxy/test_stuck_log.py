"""The proxy as a process whose log stands still, or does not exist."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import unittest
from typing import Any

from deepseek_cursor_proxy.lab.fake_deepseek import Answer, FakeDeepSeek
from tests.proxy.test_lifecycle import until
from tests.proxy.test_serve import COMMAND, ENDLESS_GRACE, PATIENCE, WINDOWS, ServeTest

# Answers of each kind, whose lines are more than a pipe has room for.
ROUNDS = 60
MESSAGES = [{"role": "user", "content": "Hi"}]
CHATS: tuple[tuple[str, dict[str, Any], bytes], ...] = (
    ("/v1/chat/completions", {"messages": MESSAGES}, b"Hello."),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, b"[DONE]"),
    ("/v1/responses", {"input": "Hi"}, b"Hello."),
    ("/v1/responses", {"input": "Hi", "stream": True}, b"response.completed"),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 100}, b"Hello."),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 100, "stream": True}, b"message_stop"),
    ("/v1/chat/completions", {"messages": 7}, b"invalid_request_error"),
    ("/nowhere", {}, b"not_found"),
)


@unittest.skipIf(WINDOWS, "signals, shells and terminals of POSIX")
class StuckLogTest(ServeTest):
    def setUp(self) -> None:
        super().setUp()
        self.fake = self.enterContext(FakeDeepSeek())
        self.port = 0

    def start(self, *arguments: str, shell: str = "", **streams: Any) -> subprocess.Popen[bytes]:
        """A proxy that is up; `shell` redirects its streams as a user would."""
        while True:
            # It cannot tell us which port it took, and another program may be quicker to take a free one.
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            command = [*COMMAND, "--port", str(self.port), "--base-url", self.fake.url, *arguments]
            if shell:
                command = ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", *command]
            process = subprocess.Popen(command, env=self.environment(), **streams)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            until(lambda process=process: self.is_up() or process.poll() is not None)  # type: ignore[misc]
            if process.poll() is None:
                return process

    def is_up(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)) as connection:
                connection.request("GET", "/healthz")
                return connection.getresponse().read() == b'{"ok":true}'
        return False

    def full_pipe(self) -> int:
        """The writing end of a pipe that has no room, and a reader that does not read."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"x"):
                pass
        os.set_blocking(writing, True)
        return writing

    def stopped_terminal(self) -> int:
        """A terminal somebody pressed Ctrl-S in."""
        import termios

        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        termios.tcflow(theirs, termios.TCOOFF)
        return theirs

    def expect_answers(self, rounds: int = 2) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        for _ in range(rounds):
            for path, body, expected in CHATS:
                headers = {"Authorization": "Bearer sk-test"}
                connection.request("POST", path, json.dumps({"model": "m", **body}), headers)
                self.assertIn(expected, connection.getresponse().read())

    def expect_end(self, process: subprocess.Popen[bytes], code: int) -> None:
        began = time.monotonic()
        self.assertEqual(code, process.wait(PATIENCE))
        self.assertLess(time.monotonic() - began, 5)


class TestStandingStill(StuckLogTest):
    def test_everybody_is_answered_and_one_signal_stops_it(self) -> None:
        pipe, terminal = self.full_pipe(), self.stopped_terminal()
        for streams in ({"stderr": pipe, "stdout": subprocess.DEVNULL}, {"stderr": terminal, "stdout": terminal}):
            process = self.start("--verbose", **streams)
            self.expect_answers()
            process.send_signal(signal.SIGHUP)
            self.expect_answers()
            process.send_signal(signal.SIGTERM)
            self.expect_end(process, 0)

    def test_one_wish_that_is_told_twice_leaves_the_exit_code_alone(self) -> None:
        """The second came while the end waited for the log, and killed the process."""
        sink = self.stopped_terminal()
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start(stdout=sink, stderr=sink)
            process.send_signal(number)
            until(lambda: not self.is_up())
            process.send_signal(number)
            self.expect_end(process, 0)

    def test_a_second_signal_ends_it_at_once(self) -> None:
        for sink in (self.full_pipe(), self.stopped_terminal()):
            self.fake.answer(Answer(content="Never said.", stall_after=0))
            process = self.start(*ENDLESS_GRACE, stdout=sink, stderr=sink)
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as waiting:
                body = json.dumps({"model": "m", "messages": MESSAGES})
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
                waiting.sendall(f"{head}Authorization: Bearer sk-test\r\n\r\n{body}".encode())
                self.fake.stalls.get(timeout=PATIENCE)
                process.send_signal(signal.SIGTERM)
                until(lambda: not self.is_up())
                time.sleep(1.1)  # later than one wish is told twice
                process.send_signal(signal.SIGTERM)
                self.expect_end(process, 128 + signal.SIGTERM)

    def test_a_reader_that_comes_back_gets_every_line_in_order(self) -> None:
        reading, writing = os.pipe()
        process = self.start(stdout=subprocess.DEVNULL, stderr=writing)
        os.close(writing)
        self.expect_answers(ROUNDS)
        process.send_signal(signal.SIGTERM)
        with open(reading, encoding="utf-8") as log:
            lines = log.read().splitlines()
        self.expect_end(process, 0)
        chats = [line for line in lines if line.startswith(("┌", "├", "└"))]
        self.assertEqual([f"#{1 + number // 4}" for number in range(len(chats))], [line.split()[1] for line in chats])
        self.assertEqual(4 * ROUNDS * 6, len(chats))
        self.assertEqual(ROUNDS * 2, len([line for line in lines if " refused: " in line]))


class TestAbsence(StuckLogTest):
    def test_a_proxy_without_standard_streams_answers_like_any_other(self) -> None:
        """Windows' pyw, and shells with `2>&-`: every chat was answered 500."""
        for closed in ("2>&-", ">&-", "<&- >&- 2>&-"):
            process = self.start(shell=closed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.expect_answers()
            process.send_signal(signal.SIGTERM)
            self.expect_end(process, 0)
