"""Signals to the process: stop, a second signal, reload, and a terminal that closes."""

import contextlib
import http.client
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli import serve, tunnel
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.features.responses.feature import Responses
from deepseek_cursor_proxy.net import wait
from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.server import connections
from deepseek_cursor_proxy.server.connections import ClientConnection
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, FakeDeepSeek, Raw, Step
from tests.support.harness import RunningProxy, SocketTestCase, read_reply, read_until, request_bytes
from tests.support.polling import wait_until
from tests.support.program import COMMAND, COMMAND_WITH_TIME_FOR_SIGNALS, ENDLESS_GRACE, PATIENCE, ServeTest, address
from tests.support.tunnel_stand_in import OK, TunnelProgramTest
from tests.unit.net.test_wait import systems

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
NO_GRACE = ("--shutdown-grace", "0.1")


class RunningTest(ServeTest):
    may_fork = True

    def connect(self, welcome: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*address(welcome), timeout=PATIENCE)
        self.addCleanup(connection.close)
        connection.request("GET", "/healthz")
        self.assertEqual(connection.getresponse().read(), b'{"ok":true}')
        return connection

    def stream(self, welcome: str) -> http.client.HTTPResponse:
        connection = self.connect(welcome)
        body = json.dumps({**CHAT, "stream": True})
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer sk-test"})
        response = connection.getresponse()
        self.addCleanup(response.close)
        self.assertTrue(response.readline().startswith(b"data: "))
        return response

    def fake(self, *steps: Step) -> FakeDeepSeek:
        fake = self.enterContext(FakeDeepSeek())
        fake.answer(*steps)
        return fake

    def pausing_fake(self, content: str) -> FakeDeepSeek:
        return self.fake(Answer(reasoning="One moment.", content=content, piece=4, stall_after=3))


# Windows' Ctrl-Break, played by a signal that exists here.
WITH_BREAK = """
import signal, sys
signal.SIGBREAK = signal.SIGUSR1
from deepseek_cursor_proxy.__main__ import main
sys.exit(main())
"""
# Ctrl-C at the moment the command line is about to be imported.
INTERRUPTED_WHILE_LOADING = """
import signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == "deepseek_cursor_proxy.cli":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from deepseek_cursor_proxy.__main__ import main
main()
"""


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class StopTest(RunningTest):
    def test_an_interrupt_during_the_imports_ends_the_proxy_without_a_traceback(self) -> None:
        command = [sys.executable, "-c", INTERRUPTED_WHILE_LOADING]
        done = subprocess.run(command, env=self.environment(), capture_output=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (-signal.SIGINT, b"", b""))

    def test_sigint_and_sigterm_stop_the_proxy_cleanly(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                process, _ = self.serve()
                process.send(number)
                self.expect_stopped(process)
                self.assertEqual(process.errors, "")

    def test_ctrl_break_stops_the_proxy(self) -> None:
        command = [sys.executable, "-c", WITH_BREAK, "--port", "0"]
        with subprocess.Popen(command, env=self.environment(), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while b"Stop with Ctrl-C." not in (line := process.stdout.readline()):
                self.assertTrue(line)
            process.send_signal(signal.SIGUSR1)
            self.assertTrue(process.stdout.read().endswith(b"Stopped.\n"))
        self.assertEqual(0, process.returncode)

    def test_a_stopping_proxy_finishes_its_answers_first_and_takes_no_new_ones(self) -> None:
        fake = self.pausing_fake("Here it is, whole.")
        process, welcome = self.serve("--base-url", fake.url, *ENDLESS_GRACE)
        idle, response = self.connect(welcome), self.stream(welcome)
        process.send(signal.SIGTERM)
        self.assertEqual(idle.sock.recv(1), b"")  # those who wait for nothing are sent away first
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(address(welcome), PATIENCE)
        fake.release.set()
        events = list(read_events(response))
        self.assertEqual(events.pop(), "[DONE]")
        said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        self.assertTrue(said.endswith("One moment.\n</details>\n\nHere it is, whole."), said)
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "stop")
        self.expect_stopped(process)
        with contextlib.closing(ReasoningStore(self.store)) as store:
            self.assertEqual(store.stats().reasonings, 1)

    def test_a_stopping_proxy_does_not_wait_for_idle_connections(self) -> None:
        process, welcome = self.serve(*ENDLESS_GRACE)
        self.connect(welcome)
        process.send(signal.SIGTERM)
        self.expect_stopped(process)

    def test_the_tunnel_outlives_the_last_answer(self) -> None:
        """Cursor's answers leave through it."""
        order = mock.Mock(**{"tunnel.start.return_value": "https://x.example"})
        with (
            mock.patch.object(tunnel, "Tunnel", return_value=order.tunnel),
            mock.patch.object(DeepSeekProxyServer, "drain", order.drain),
            mock.patch.object(serve, "_log_to_stderr"),
            mock.patch.object(serve, "welcome_text", side_effect=lambda *_: str(signal.raise_signal(signal.SIGTERM))),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            before = signal.getsignal(signal.SIGTERM)
            config = ProxyConfig(port=0, admin_port=0, ngrok=True, reasoning_content_path=Path(":memory:"))
            with mock.patch.object(serve, "load", return_value=LoadedConfig(config, {})):
                self.assertEqual(0, serve.run({"config": Path("unused"), "clear_reasoning_cache": False}))
        self.assertEqual(order.mock_calls, [mock.call.tunnel.start(), mock.call.drain(5.0), mock.call.tunnel.stop()])
        self.assertEqual(signal.getsignal(signal.SIGTERM), before)

    # What the clients of a proxy that stops are told …

    def ask(self, welcome: str, data: bytes) -> socket.socket:
        sock = self.enterContext(socket.create_connection(address(welcome), PATIENCE))
        sock.sendall(data)
        return sock

    def assert_error(self, sock: socket.socket) -> None:
        status, headers, body = read_reply(sock)
        error = json.loads(body)["error"]
        self.assertEqual((503, "proxy_stopping", None), (status, error["code"], error["param"]))
        self.assertEqual(("5", "close"), (headers["retry-after"], headers["connection"]))
        self.assertIn("Ask again", error["message"])

    def test_a_stream_that_outlasts_the_grace_period_is_ended_properly(self) -> None:
        fake = self.pausing_fake("Never said.")
        process, welcome = self.serve("--base-url", fake.url, *NO_GRACE)
        response = self.stream(welcome)
        process.send(signal.SIGTERM)
        *_, reply, done = read_events(response)
        self.assertEqual("[DONE]", done)
        self.assertEqual(("proxy_stopping", "server_error"), (reply["error"]["code"], reply["error"]["type"]))
        self.expect_stopped(process)
        self.assertTrue(fake.wait_for_hangup(PATIENCE))
        with contextlib.closing(ReasoningStore(self.store)) as store:
            self.assertEqual(store.stats().reasonings, 1, "what was thought until then is kept")

    def test_a_request_without_an_answer_yet_gets_a_503_with_retry_after_at_the_stop(self) -> None:
        fake = self.fake(Raw(b"", then_close=False), Answer(content="Never said.", stall_after=0))
        process, welcome = self.serve("--base-url", fake.url, *NO_GRACE)
        waiting = [self.ask(welcome, request_bytes(CHAT))]
        wait_until(lambda: len(fake.seen) == 1)
        waiting.append(self.ask(welcome, request_bytes(CHAT)))
        wait_until(lambda: len(fake.seen) == 2)
        half_a_body = self.ask(welcome, request_bytes(CHAT, headers=["Expect: 100-continue"]).partition(b"{")[0])
        self.assertEqual(100, read_reply(half_a_body)[0])
        process.send(signal.SIGTERM)
        for sock in (*waiting, half_a_body):
            self.assert_error(sock)
        self.expect_stopped(process)

    def test_a_stopping_proxy_does_not_wait_for_half_a_head(self) -> None:
        process, welcome = self.serve(*ENDLESS_GRACE)
        # The first request is answered, so what stands behind it has been read.
        sock = self.ask(welcome, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal")
        self.assertEqual(200, read_reply(sock)[0])
        process.send(signal.SIGTERM)
        self.assert_error(sock)
        self.expect_stopped(process)

    def test_a_client_that_does_not_read_does_not_delay_the_stop_after_the_grace(self) -> None:
        fake = self.fake(Answer(content="x" * 24_000_000, piece=200_000))
        process, welcome = self.serve("--base-url", fake.url, *NO_GRACE)
        sock = self.enterContext(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(address(welcome))
        sock.sendall(request_bytes({**CHAT, "stream": True}))
        wait_until(lambda: fake.seen)
        process.send(signal.SIGTERM)
        self.expect_stopped(process)


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class SecondSignalTest(RunningTest, TunnelProgramTest):
    def test_two_signals_within_a_fifth_of_a_second_count_as_one(self) -> None:
        """GNU timeout signals the process, and then the group it is in."""
        self.command = COMMAND_WITH_TIME_FOR_SIGNALS
        fake = self.pausing_fake("Here it is, whole.")
        process, welcome = self.serve("--base-url", fake.url, *ENDLESS_GRACE)
        response = self.stream(welcome)
        process.send(signal.SIGTERM)
        process.read_until("Stopping; running answers have 3600 s to finish. A second Ctrl-C stops at once.\n")
        process.send(signal.SIGTERM)
        process.send(signal.SIGINT)
        fake.release.set()
        self.assertEqual("[DONE]", list(read_events(response))[-1])
        self.expect_stopped(process)

    def test_a_second_signal_ends_the_proxy_at_once_and_its_tunnel_too(self) -> None:
        for first, second in ((signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM)):
            with self.subTest(second):
                fake = self.pausing_fake("Never said.")
                environment = self.install("ngrok", OK)
                process, _ = self.serve("--base-url", fake.url, "--ngrok", *ENDLESS_GRACE, **environment)
                response = self.stream(self.local())
                process.send(first)
                process.read_until("Stopping; running answers have 3600 s to finish. A second Ctrl-C stops at once.\n")
                # A person who presses Ctrl-C twice in a hurry.
                time.sleep(0.4)
                process.send(second)
                self.assertEqual(128 + second, process.wait())
                self.assertRegex(process.errors.splitlines()[-1], "^deepseek-cursor-proxy: asked to stop twice")
                self.assertNotIn("Traceback", process.errors)
                with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
                    response.read()
                wait_until(self.is_tunnel_gone)

    def local(self) -> str:
        """The welcome as it would be without the tunnel."""
        return f"http://127.0.0.1:{self.forwarded_port()}/v1"


class Interrupted(Exception):
    """Raised by the handler of a signal."""


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class SignalToAnotherThreadTest(SocketTestCase):
    """After a SIGSTOP the system gives a signal to any thread; its handler runs on the main thread."""

    def setUp(self) -> None:
        super().setUp()
        self.is_handled = threading.Event()
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, self.handle))

    def handle(self, *_: object) -> None:
        self.is_handled.set()
        raise Interrupted

    def signal_this_thread(self, changed: threading.Condition, has_begun: Callable[[], object]) -> bool:
        """Whether the main thread handles the signal by itself."""
        wait_until(has_begun)
        # The main thread holds it until it waits.
        with changed:
            signal.raise_signal(signal.SIGUSR1)
        is_handled = self.is_handled.wait(PATIENCE)
        with changed:
            changed.notify_all()
        return is_handled

    def assert_drain_is_interrupted(self, changed: threading.Condition, has_begun: Callable[[], object]) -> None:
        with ThreadPoolExecutor(1) as pool:
            is_handled = pool.submit(self.signal_this_thread, changed, has_begun)
            with self.assertRaises(Interrupted):
                self.running.server.drain(3600.0)
            self.assertTrue(is_handled.result(PATIENCE))

    def test_its_handler_runs_while_an_answer_has_time_to_finish(self) -> None:
        self.fake.answer(Answer(content="Never said.", stall_after=1))
        with self.connect(self.running, {**CHAT, "stream": True}) as sock:
            read_until(sock, b"data: ")
            clients = self.running.server.connections
            self.assert_drain_is_interrupted(clients._changed, lambda: clients._stage)

    def test_its_handler_runs_while_a_background_response_has_time_to_finish(self) -> None:
        self.fake.answer(Answer(content="Never said.", stall_after=1))
        self.call(self.running, "POST", "/v1/responses", {"model": "m", "input": "Hi", "background": True})
        self.fake.stalls.get(timeout=PATIENCE)
        jobs = self.running.server.services().get(Responses).jobs
        self.assert_drain_is_interrupted(jobs._changed, lambda: jobs._is_stopping)


@unittest.skipIf(os.name == "nt", "signals are a POSIX thing")
class ReloadTest(RunningTest):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.home / "mine.toml"
        self.path.write_text('model = "one"\n')

    def serve_mine(self, *arguments: str) -> tuple[Any, str]:
        return self.serve("--config", str(self.path), *arguments)

    def model(self, connection: http.client.HTTPConnection) -> str:
        connection.request("GET", "/v1/models")
        return str(json.loads(connection.getresponse().read())["data"][0]["id"])

    def test_new_settings_hold_for_the_next_request_also_on_an_old_connection(self) -> None:
        process, welcome = self.serve_mine()
        connection = self.connect(welcome)
        self.assertEqual("one", self.model(connection))
        self.path.write_text('model = "two"\nngrok = true\nreasoning_cache_max_rows = 7\n')
        process.send(signal.SIGHUP)
        line = process.read_until(" again: ")
        words = f"Read {self.path} again: model changed. Restart for reasoning_cache_max_rows, ngrok."
        self.assertIn(words, line.replace("\n", ""))
        self.assertEqual("two", self.model(connection))
        process.send(signal.SIGHUP)
        self.assertIn("again: nothing changed.", process.read_until(" again: "))
        process.send(signal.SIGTERM)
        self.expect_stopped(process)

    def test_a_reload_that_changes_who_is_served_says_so(self) -> None:
        process, _ = self.serve_mine()
        route = '[passthrough."gpt-*"]\nbase_url = "https://x"\nkey_env = "K"\n'
        self.path.write_text(route)
        process.send(signal.SIGHUP)
        told = "again: model, passthrough changed.\n[passthrough] is for the first key"
        self.assertIn(told, process.read_until("[passthrough] is"))

    def test_a_reload_reads_keys_and_says_what_changed_by_name(self) -> None:
        process, _ = self.serve_mine()
        folder = self.path.parent / "keys.d"
        folder.mkdir()
        (folder / "ann.toml").write_text('[keys.ann]\nkey = "sk-the-key-of-ann"\n')
        process.send(signal.SIGHUP)
        self.assertIn("again: keys changed.", process.read_until(" again: ").replace("\n", ""))
        wait_until(lambda: "keys.ann was added" in process.errors)
        self.assertNotIn("sk-the-key", process.errors)

    def test_flags_win_over_the_file_after_a_reload(self) -> None:
        process, welcome = self.serve_mine("--model", "flag")
        self.path.write_text('model = "two"\n')
        process.send(signal.SIGHUP)
        self.assertIn("nothing changed", process.read_until(" again: "))
        self.assertEqual("flag", self.model(self.connect(welcome)))

    def test_a_mistake_in_reloaded_settings_is_one_line_and_changes_nothing(self) -> None:
        process, welcome = self.serve_mine()
        connection = self.connect(welcome)
        for text in ('modle = "two"\n', 'model = "two"\ncors = 7\n', "model =\n", None):
            before = process.errors
            self.path.unlink() if text is None else self.path.write_text(text)
            process.send(signal.SIGHUP)
            wait_until(lambda before=before: process.errors.endswith("\n") and process.errors != before)  # type: ignore[misc]
            line = process.errors.removeprefix(before)
            self.assertRegex(line, r"\Aconfig: [^\n]+; the settings stay as they were\n\Z")
            self.assertEqual("one", self.model(connection))

    def test_a_reload_does_not_touch_a_running_answer(self) -> None:
        old, new = self.pausing_fake("From the old one."), self.enterContext(FakeDeepSeek())
        self.path.write_text(f'base_url = "{old.url}"\n')
        process, welcome = self.serve_mine()
        response = self.stream(welcome)
        self.path.write_text(f'base_url = "{new.url}"\n')
        process.send(signal.SIGHUP)
        process.read_until("again: base_url changed.")
        self.stream(welcome).read()
        self.assertEqual((1, 1), (len(old.seen), len(new.seen)))
        old.release.set()
        events = list(read_events(response))
        self.assertEqual(("stop", "[DONE]"), (events[-2]["choices"][0]["finish_reason"], events[-1]))
        process.send(signal.SIGTERM)
        self.expect_stopped(process)


@unittest.skipIf(os.name == "nt", "terminals are a POSIX thing")
class TerminalTest(ServeTest):
    def test_a_closed_standard_output_does_not_end_the_proxy(self) -> None:
        """A supervisor waits for the welcome and closes the pipe; the next SIGHUP would have been the end."""
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w", encoding="utf-8") as nobody, contextlib.redirect_stdout(nobody):
            with standard_streams.serving_streams():
                for _ in range(2):
                    serve._print("Read the settings again.")
                    standard_streams.drain(PATIENCE)

    def serve_in_a_terminal(self, before: str) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = os.openpty()
        name = os.ttyname(theirs)
        # The first to open a terminal without having one gets it as its own.
        command = shlex.join([*COMMAND, "--port", "0"])
        script = f"{before}; exec {command} <>{name} >&0 2>&0"
        process = subprocess.Popen(["/bin/sh", "-c", script], env=self.environment(), start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        printed = b""
        while b"Stop with Ctrl-C." not in printed:
            printed += os.read(ours, 4096)
        os.close(theirs)
        return process, ours

    def test_closing_the_terminal_stops_the_proxy(self) -> None:
        process, terminal = self.serve_in_a_terminal("true")
        os.close(terminal)
        self.assertEqual(0, process.wait(PATIENCE))

    def test_a_proxy_under_nohup_survives_its_terminal(self) -> None:
        process, terminal = self.serve_in_a_terminal("trap '' HUP")
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(PATIENCE))


def read_events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """The events still to come, decoded; the last one is a word."""
    for line in response.read().splitlines():
        if line.startswith(b"data: "):
            yield "[DONE]" if line == b"data: [DONE]" else json.loads(line.removeprefix(b"data: "))


class TestIdleClients(unittest.TestCase):
    def test_an_idle_client_does_not_delay_the_stop_on_any_system(self) -> None:
        """On Windows no wait notices that we shut down its socket: the stop took all of its grace period, 7 seconds."""
        for name, system in systems().items():
            with (
                self.subTest(name),
                mock.patch.multiple(wait, **system),
                mock.patch.object(ClientConnection, "_shut"),
                mock.patch.object(connections, "_LOOK_SECONDS", 0.05),
                contextlib.closing(RunningProxy("http://127.0.0.1:9")) as proxy,
                socket.create_connection(proxy.address, timeout=PATIENCE) as sock,
            ):
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(200, read_reply(sock)[0])
                proxy.server.shutdown()
                started = time.monotonic()
                proxy.server.drain(PATIENCE)
                self.assertLess(time.monotonic() - started, PATIENCE / 2)
                self.assertEqual(b"", sock.recv(1))
                wait_until(lambda proxy=proxy: len(proxy.server.connections) == 0)  # type: ignore[misc]
