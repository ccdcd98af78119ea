"""A proxy with worker processes: started by the command line, one port and one log for all of them."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli import serve, signals
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import StartupError
from tests.fake_deepseek import Answer, Call
from tests.proxy.lifecycle.test_stop_and_reload import CHAT, RunningTest
from tests.support.histories import TOOLS
from tests.support.polling import wait_until
from tests.support.program import ENDLESS_GRACE, PATIENCE, Process, address

QUESTION = {"role": "user", "content": "What is in a?"}
CALL = Answer(reasoning="I must read it.", calls=(Call("call_1", "read_file", "{}"),))
HELLO = Answer(reasoning="Hm.", content="Hello.")


def processes() -> dict[int, int]:
    """The parent of every running process, by process id."""
    rows = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # It may end just now. The name of the program, in brackets, may have blanks.
        with contextlib.suppress(OSError):
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            rows.append((path.parent.name, parent, state))
    if not rows:
        # Elsewhere than on Linux; by its path, because the PATH of a test may be empty.
        words = ["/bin/ps", "-A", "-o", "pid=,ppid=,stat="]
        listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        rows = [(pid, parent, state) for pid, parent, state in map(str.split, listed.splitlines())]
    return {int(pid): int(parent) for pid, parent, state in rows if state[0] != "Z"}


@unittest.skipIf(os.name == "nt", "Windows has no worker processes")
class WorkersTest(RunningTest):
    def work(self, *arguments: str) -> tuple[Process, str]:
        return self.serve("--workers", "2", *arguments)

    def pids(self, process: Process) -> list[int]:
        """The worker processes of a proxy."""
        return [pid for pid, parent in processes().items() if parent == process._process.pid]

    def finish(self, response: http.client.HTTPResponse) -> bool:
        """Whether the rest of a streamed answer comes."""
        try:
            return b"[DONE]" in response.read()
        except (http.client.IncompleteRead, ConnectionError):
            return False

    def test_a_killed_worker_process_costs_its_own_streams_and_is_replaced(self) -> None:
        fake = self.fake(*[Answer(reasoning="One moment.", content="Here it is.", piece=4, stall_after=3)] * 8)
        process, welcome = self.work("--base-url", fake.url, *ENDLESS_GRACE)
        first, second = self.pids(process)
        streams = [self.stream(welcome) for _ in range(8)]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len({first, *self.pids(process)}) == 3)
        fake.release.set()
        self.assertEqual({True, False}, {self.finish(stream) for stream in streams})
        self.assertIn(second, self.pids(process))
        # Both, right after an answer: no turn is lost, and who comes meanwhile waits for the next process.
        fake.answer(CALL, HELLO)
        said = self.ask(welcome, QUESTION)
        for pid in self.pids(process):
            os.kill(pid, signal.SIGKILL)
        call = {"role": "assistant", "content": said["content"], "tool_calls": said["tool_calls"]}
        self.ask(welcome, QUESTION, call, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "1"})
        self.assertEqual("I must read it.", fake.accepted[-1]["messages"][1]["reasoning_content"])
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertIn("was killed by signal 9; another one takes its place", process.errors)

    def ask(self, welcome: str, *messages: dict[str, Any]) -> dict[str, Any]:
        """The message that answers these, over a connection of its own."""
        body = json.dumps({**CHAT, "messages": messages, "tools": TOOLS})
        with contextlib.closing(http.client.HTTPConnection(*address(welcome), timeout=PATIENCE)) as connection:
            connection.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer sk-test"})
            message: dict[str, Any] = json.load(connection.getresponse())["choices"][0]["message"]
            return message

    def test_all_stop_gracefully_and_print_one_log(self) -> None:
        fake = self.fake(*[HELLO] * 40)
        config = self.home / "config.toml"
        config.write_text("", encoding="utf-8")
        process, welcome = self.work("--base-url", fake.url, "--config", str(config), *ENDLESS_GRACE)
        for _ in range(40):
            self.ask(welcome, QUESTION)
        fake.answer(Answer(reasoning="One moment.", content="Whole.", piece=4, stall_after=3))
        response = self.stream(welcome)
        # New settings reach both processes.
        connections = [self.connect(welcome) for _ in range(4)]
        config.write_text('access_keys = ["sk-of-the-owner"]\n', encoding="utf-8")
        process.send(signal.SIGHUP)
        self.assertIn("access_keys changed", process.read_until("Read "))
        for connection in connections:
            wait_until(lambda connection=connection: self.status(connection) == 401)
        process.send(signal.SIGTERM)
        self.assert_refused(welcome)
        fake.release.set()
        self.assertTrue(self.finish(response))
        self.expect_stopped(process)
        # The lines of a request are together, under a number of its own.
        numbers = re.findall(r"┌ #(\d+) .*\n├ #\1 .*\n├ #\1 .*\n└ #\1 .*\n", process.errors)
        self.assertEqual((41, 41), (len(numbers), len({*numbers})), process.errors)
        self.assertEqual(41 * 4, sum(line[0] != "─" for line in process.errors.splitlines()))

    def assert_refused(self, welcome: str) -> None:
        def is_refused() -> bool:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address(welcome), PATIENCE):
                return False
            return True

        wait_until(is_refused)

    def test_a_second_signal_ends_all_at_once(self) -> None:
        fake = self.pausing_fake("Never.")
        process, welcome = self.work("--base-url", fake.url, *ENDLESS_GRACE)
        pids, response = self.pids(process), self.stream(welcome)
        process.send(signal.SIGTERM)
        process.read_until("Stopping")
        self.assert_refused(welcome)
        threading.Event().wait(signals._DUPLICATE_SECONDS)
        process.send(signal.SIGTERM)
        self.assertEqual(128 + signal.SIGTERM, process.wait())
        self.assertFalse(self.finish(response))
        wait_until(lambda: processes().keys().isdisjoint(pids))

    def test_worker_processes_end_with_a_supervisor_that_was_killed(self) -> None:
        process, welcome = self.work()
        pids = self.pids(process)
        process.send(signal.SIGKILL)
        process.wait()
        self.assert_refused(welcome)
        wait_until(lambda: processes().keys().isdisjoint(pids))

    def status(self, connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/v1/responses/resp_x", headers={"Authorization": "Bearer sk-test"})
        with connection.getresponse() as reply:
            reply.read()
            return reply.status

    def test_windows_is_refused_in_words(self) -> None:
        config = ProxyConfig(workers=2)
        with mock.patch.object(os, "name", "nt"), self.assertRaisesRegex(StartupError, "Linux or macOS"):
            serve._check_workers(config)

    def test_a_store_in_memory_is_refused(self) -> None:
        line = self.refusal("--workers", "2", "--port", "0", "--reasoning-content-path", ":memory:")
        self.assertIn("--workers needs a file", line)
