"""The proxy as a process whose log cannot be written, or does not exist."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import unittest
from collections.abc import Iterable
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli import signals
from tests.fake_deepseek import Answer, FakeDeepSeek
from tests.support.harness import request_bytes
from tests.support.polling import wait_until
from tests.support.ports import server_port
from tests.support.program import COMMAND_WITH_TIME_FOR_SIGNALS, ENDLESS_GRACE, PATIENCE, WINDOWS, ServeTest
from tests.support.width import width

if not WINDOWS:
    pass

# Answers of each kind, whose lines are more than a pipe has room for.
MESSAGES = [{"role": "user", "content": "Hi"}]
CHATS: tuple[tuple[str, dict[str, Any], bytes], ...] = (
    ("/v1/chat/completions", {"messages": MESSAGES}, b"Hello."),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, b"[DONE]"),
    ("/v1/responses", {"input": "Hi"}, b"Hello."),
    ("/v1/responses", {"input": "Hi", "stream": True}, b"response.completed"),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2000}, b"Hello."),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2000, "stream": True}, b"message_stop"),
    ("/v1/chat/completions", {"messages": 7}, b"invalid_request_error"),
    ("/nowhere", {}, b"not_found"),
)


class Program(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int

    def is_up(self) -> bool:
        # One that is slow is up: a second signal must not come before the first was handled.
        with contextlib.suppress(OSError, http.client.HTTPException):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
                connection.request("GET", "/healthz")
                return connection.getresponse().read() == b'{"ok":true}'
        return False


@unittest.skipIf(WINDOWS, "signals, shells and terminals of POSIX")
class BlockedLogTestCase(ServeTest):
    def setUp(self) -> None:
        super().setUp()
        self.fake = self.enterContext(FakeDeepSeek())

    def start(self, *arguments: str, shell: str = "", **streams: Any) -> Program:
        """A proxy that is up; `shell` redirects its streams as a user would."""
        # It cannot tell us which port it took.
        port = self.enterContext(server_port())
        command = [*self.command, "--port", str(port), "--base-url", self.fake.url, *arguments]
        if shell:
            command = ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", *command]
        process = subprocess.Popen(command, env=self.environment(), **streams)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        program = Program(process, port)
        wait_until(program.is_up)
        return program

    def full_pipe(self) -> int:
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
        import termios

        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        termios.tcflow(theirs, termios.TCOOFF)
        return theirs

    def expect_answers(self, program: Program, rounds: int = 2) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        for _ in range(rounds):
            for path, body, expected in CHATS:
                headers = {"Authorization": "Bearer sk-test"}
                connection.request("POST", path, json.dumps({"model": "m", **body}), headers)
                self.assertIn(expected, connection.getresponse().read())

    def signal(self, programs: Iterable[Program], number: int) -> None:
        for program in programs:
            program.process.send_signal(number)

    def expect_end(self, program: Program, code: int) -> None:
        self.assertEqual(code, program.process.wait(PATIENCE))


class TestBlockedLog(BlockedLogTestCase):
    # Each of them waits for its log for a second at the end, so the programs of a test run side by side.

    def test_a_blocked_log_delays_no_answer_and_one_signal_stops_the_proxy(self) -> None:
        pipe, terminal = self.full_pipe(), self.stopped_terminal()
        sinks = ({"stderr": pipe, "stdout": subprocess.DEVNULL}, {"stderr": terminal, "stdout": terminal})
        programs = [self.start("--verbose", **streams) for streams in sinks]
        for program in programs:
            self.expect_answers(program)
        self.signal(programs, signal.SIGHUP)
        for program in programs:
            self.expect_answers(program)
        self.signal(programs, signal.SIGTERM)
        for program in programs:
            self.expect_end(program, 0)

    def test_the_same_signal_twice_while_the_log_is_blocked_keeps_the_exit_code(self) -> None:
        """The second came while the end waited for the log, and killed the process."""
        self.command, sink = COMMAND_WITH_TIME_FOR_SIGNALS, self.stopped_terminal()
        programs = {number: self.start(stdout=sink, stderr=sink) for number in (signal.SIGINT, signal.SIGTERM)}
        for number, program in programs.items():
            program.process.send_signal(number)
            wait_until(lambda program=program: not program.is_up())  # type: ignore[misc]
            program.process.send_signal(number)
        for program in programs.values():
            self.expect_end(program, 0)

    def test_a_second_signal_ends_a_proxy_with_a_blocked_log_at_once(self) -> None:
        programs = []
        for sink in (self.full_pipe(), self.stopped_terminal()):
            self.fake.answer(Answer(content="Never said.", stall_after=0))
            program = self.start(*ENDLESS_GRACE, stdout=sink, stderr=sink)
            waiting = self.enterContext(socket.create_connection(("127.0.0.1", program.port), PATIENCE))
            waiting.sendall(request_bytes({"model": "m", "messages": MESSAGES}))
            self.fake.stalls.get(timeout=PATIENCE)
            programs.append(program)
        self.signal(programs, signal.SIGTERM)
        for program in programs:
            wait_until(lambda program=program: not program.is_up())  # type: ignore[misc]
        time.sleep(signals._DUPLICATE_SECONDS + 0.1)
        self.signal(programs, signal.SIGTERM)
        for program in programs:
            self.expect_end(program, 128 + signal.SIGTERM)


class TestNoStandardStreams(BlockedLogTestCase):
    def test_a_proxy_without_standard_streams_answers_like_any_other(self) -> None:
        """Windows' pyw, and shells with `2>&-`: every chat was answered 500."""
        for closed in width(("<&- >&- 2>&-",), ("2>&-", ">&-", "<&- >&- 2>&-")):
            program = self.start(shell=closed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.expect_answers(program, rounds=1)
            program.process.send_signal(signal.SIGTERM)
            self.expect_end(program, 0)


@unittest.skipIf(os.name == "nt", "limits are a POSIX thing")
class TestFullDisk(ServeTest):
    def test_the_proxy_serves_with_its_log_on_a_full_disk(self) -> None:
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Inherited by the process, whose stderr is a file; this one writes nothing meanwhile.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            process = self.launch("--port", "0")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        process.read_until("Stop with Ctrl-C.\n")
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertEqual("", process.errors)
