"""The proxy as a process: started by the command line, read line by line, stopped by signals."""

import contextlib
import http.client
import os
import queue
import signal
import socket
import stat
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from tests.fake_deepseek import FakeDeepSeek
from tests.support import forked_program
from tests.support.harness import RawReply, read_reply, request_bytes
from tests.support.systems import ROOT

PATIENCE = 60.0
# Longer than any test may take: a process that ends has not waited for this.
ENDLESS_GRACE = ("--shutdown-grace", "3600")
COMMAND = (sys.executable, "-W", "error", "-m", "deepseek_cursor_proxy")
# The same, and signals count as one however long this machine takes to send the second.
COMMAND_WITH_TIME_FOR_SIGNALS = (
    *COMMAND[:3],
    "-c",
    "import sys; from deepseek_cursor_proxy.cli import signals; signals._DUPLICATE_SECONDS = 3600.0\n"
    "from deepseek_cursor_proxy.__main__ import main; sys.exit(main())",
)
WINDOWS = os.name == "nt"


class Process:
    """A run of the command line; a thread turns its stdout into lines, its stderr goes to a file."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        errors: Path,
        prefix: tuple[str, ...] = (),
        command: tuple[str, ...] = COMMAND,
        *,
        may_fork: bool = False,
    ) -> None:
        self._errors = errors
        self._lines: queue.Queue[str] = queue.Queue()
        command = (*prefix, *command, *arguments)
        self._process: Popen[str] | forked_program.ForkedProcess
        with errors.open("wb") as file:
            if may_fork and forked_program.can_start(command, environment):
                self._process = forked_program.start(command, environment, file)
            else:
                self._process = Popen(
                    command, stdin=DEVNULL, stdout=PIPE, stderr=file, env=environment, encoding="utf-8"
                )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line)

    def read_until(self, text: str) -> str:
        """What is printed up to the line that has this text."""
        printed = ""
        while text not in printed:
            try:
                printed += self._lines.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"{text!r} was never printed; {printed!r} was, and {self.errors!r}") from None
        return printed

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    @property
    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def rest(self) -> str:
        self._reader.join(PATIENCE)
        return "".join(self._lines.queue)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        self._reader.join(PATIENCE)


class ServeTest(unittest.TestCase):
    # A command that runs the command behind it.
    prefix: tuple[str, ...] = ()
    command: tuple[str, ...] = COMMAND
    # Whether forks of one process will do: nothing is tested that only a new interpreter does or inherits.
    may_fork = False

    def setUp(self) -> None:
        self._hear_signals()
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.home, self.bin = place / "home", place / "bin"
        self.home.mkdir()
        self.bin.mkdir()
        self.directory = self.home / ".deepseek-cursor-proxy"
        self.store = self.directory / "reasoning_content.sqlite3"

    def _hear_signals(self) -> None:
        """Tests that run in the background, or with nohup, start processes that ignore these signals."""
        for number in () if WINDOWS else (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                self.addCleanup(signal.signal, number, signal.SIG_IGN)
                signal.signal(number, signal.SIG_DFL)

    def launch(self, *arguments: str, **environment: str) -> Process:
        errors = self.bin.parent / "errors"
        inherited = self.environment(**environment)
        process = Process(arguments, inherited, errors, self.prefix, self.command, may_fork=self.may_fork)
        self.addCleanup(process.close)
        return process

    def environment(self, **more: str) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DEEPSEEK_CURSOR_PROXY_")}
        ours |= {"HOME": str(self.home), "USERPROFILE": str(self.home), "PYTHONIOENCODING": "utf-8"}
        return ours | {"PYTHONPATH": str(ROOT), **more}

    def serve(self, *arguments: str, **environment: str) -> tuple[Process, str]:
        """A proxy that is up, and what it said about that; without an admin listener, unless one is asked for."""
        process = self.launch("--port", "0", "--admin-port", "0", *arguments, **environment)
        return process, process.read_until("Stop with Ctrl-C.\n")

    def refusal(self, *arguments: str, progress: str = "", **environment: str) -> str:
        """The one line with which a proxy does not start, after lines of its progress if there are any."""
        process = self.launch(*arguments, **environment)
        self.assertEqual(process.wait(), 2, process.errors)
        self.assertRegex(process.rest(), rf"\A{progress}.*\n" if progress else r"\A\Z")
        self.assertRegex(process.errors, r"\Adeepseek-cursor-proxy: [^\n]+\n\Z")
        return process.errors.removeprefix("deepseek-cursor-proxy: ").rstrip("\n")

    def expect_stopped(self, process: Process) -> None:
        self.assertEqual(process.wait(), 0, process.errors)
        self.assertTrue(process.rest().endswith("Stopped.\n"))
        self.assertNotIn("Traceback", process.errors)
        self.assertNotIn("Warning", process.errors)

    def expect_health(self, port: int) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/healthz")
            self.assertEqual(connection.getresponse().read(), b'{"ok":true}')

    def expect_mode(self, path: Path, mode: int) -> None:
        if not WINDOWS:
            self.assertEqual(oct(stat.S_IMODE(path.stat().st_mode)), oct(mode))


class UpstreamServeTest(ServeTest):
    """A proxy with a fake DeepSeek, which tests kill and start again."""

    may_fork = True

    def setUp(self) -> None:
        super().setUp()
        self.fake = self.enterContext(FakeDeepSeek())

    def start(self, *flags: str) -> Process:
        process, welcome = self.serve("--base-url", self.fake.url, *flags)
        self.address = address(welcome)
        return process

    def kill(self, process: Process) -> None:
        process.send(signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, process.wait())

    def connect(self, method: str, path: str, body: Any = b"") -> socket.socket:
        sock = self.enterContext(socket.create_connection(self.address, timeout=PATIENCE))
        sock.sendall(request_bytes(body, method=method, path=path))
        return sock

    def send(self, method: str, path: str, body: Any = b"") -> RawReply:
        reply = read_reply(self.connect(method, path, body))
        self.assertEqual(200, reply.status, reply.body)
        return reply


def address(welcome: str) -> tuple[str, int]:
    """Where the proxy listens, from the URL it asks people to paste."""
    url = next(word for word in welcome.split() if word.startswith("http://"))
    host, _, port = url.removeprefix("http://").removesuffix("/v1").rpartition(":")
    return host, int(port)
