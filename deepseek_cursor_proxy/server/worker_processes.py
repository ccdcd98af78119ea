"""WorkerProcesses: starts the processes that serve clients, replaces those that die, and passes messages between them.

The supervisor has bound the listener; every worker process inherits it and accepts clients from it, so a client that
connects while one of them dies is served by another. One that dies soon after its start again and again is replaced
after a pause that grows; if no other one serves either, the supervisor gives up. A worker process whose supervisor has
died reads the end of its channel, and stops.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.net.channel import ASK_SECONDS, Channel
from deepseek_cursor_proxy.net.deadline import Deadline

_log = logging.getLogger(__name__)

# A worker process that dies sooner has failed; the first is replaced at once, the next after these pauses.
_SHORT_LIFE_SECONDS = 5.0
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 30.0
# Failures of a slot in a row, the last of them while no other served, after which the supervisor gives up.
_MOST_FAILURES = 5
# What a worker process needs after `shutdown_grace` to end and to close its files; then it is killed.
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.1
# With our path: the modules of a zip file are found again.
_PROGRAM = "import sys; sys.path[:] = {}; from {} import main; sys.exit(main({}, {}, {}))"
# The clients of a slot without a process: more than any other has.
_NO_PROCESS = b"\xff\xff\xff\xff"


@dataclass
class WorkerProcess:
    slot: int
    process: "subprocess.Popen[bytes]"
    channel: Channel
    is_ready: bool = False


class WorkerProcesses:
    """Called by the main thread, by the reading threads of channels and by a thread for each slot.

    `_changed` protects `_workers`, and is notified when a worker process is ready or gone.
    """

    # Assigned by the owner: what answers the messages of a slot, what a new process gets first and once it is ready,
    # and what is done when it has died.
    handlers: Callable[[int], Mapping[str, Callable[..., Any]]]
    setup: Callable[[int], tuple[Any, ...]]
    on_ready: Callable[[Channel], object]
    on_death: Callable[[int], object]

    def __init__(self, module: str, count: int, listener: socket.socket) -> None:
        """`module` has a `main` that takes the descriptors of the channel, the listener and the counts of clients."""
        self._module = module
        self._count = count
        self._listener = listener
        self._files = ExitStack()
        self._changed = threading.Condition()
        self._workers: dict[int, WorkerProcess] = {}
        self._threads: list[threading.Thread] = []
        self._is_stopping = threading.Event()
        self._has_started = self.has_given_up = False

    @property
    def alive(self) -> int:
        """How many serve clients."""
        return len(self._ready())

    def start(self, is_over: Callable[[], bool]) -> None:
        """Start all and wait until they serve, or until `is_over`. Raises StartupError if one ends before that."""
        # How many clients each process has: four bytes, which it writes and the others read.
        self._counts = self._files.enter_context(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
        self._counts.write(_NO_PROCESS * self._count)
        for slot in range(1, self._count + 1):
            self._threads.append(threading.Thread(target=self._run, args=(slot,), name=f"worker-{slot}"))
            self._threads[-1].start()
        with self._changed:
            while not self._changed.wait_for(lambda: self.has_given_up or self.alive == self._count, _LOOK_SECONDS):
                if is_over():
                    return
        if self.has_given_up:
            raise StartupError("a worker process did not start; the line above says why")
        self._has_started = True

    def post(self, name: str, *values: Any, but: int = 0) -> None:
        """Post a message to all worker processes, except the one of a slot."""
        for worker in self._ready(but):
            worker.channel.post(name, *values)

    def ask(self, name: str, *values: Any, but: int = 0) -> list[Any]:
        """Ask all worker processes. Returns the answers that come in time and are not None."""
        waits = [worker.channel.ask(name, *values) for worker in self._ready(but)]
        deadline = Deadline.after(ASK_SECONDS)
        return [answer for wait in waits if (answer := wait(deadline.left)) is not None]

    def stop(self, grace: float) -> None:
        """Let all finish their answers and end, and wait for them; after the grace they are killed."""
        self._is_stopping.set()
        # Those that serve get a message: a signal may reach another thread of theirs, and the main one goes on waiting.
        self.post("stop")
        self._signal(signal.SIGTERM)
        deadline = Deadline.after(grace + _END_SECONDS)
        for thread in self._threads:
            thread.join(max(0.0, deadline.left))
        self.kill()
        for thread in self._threads:
            thread.join()
        self._files.close()

    def kill(self) -> None:
        """End all at once. For a signal handler, too: takes no lock."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for worker in list(self._workers.values()):
            with suppress(OSError):
                worker.process.send_signal(number)

    def _ready(self, but: int = 0) -> list[WorkerProcess]:
        return [worker for worker in list(self._workers.values()) if worker.is_ready and worker.slot != but]

    # On the thread of a slot …

    def _run(self, slot: int) -> None:
        failures = 0
        while not self._is_stopping.is_set():
            worker, started_at = self._start(slot), time.monotonic()
            if self._is_stopping.is_set():
                worker.process.terminate()
            code = worker.process.wait()
            worker.channel.close()
            os.pwrite(self._counts.fileno(), _NO_PROCESS, len(_NO_PROCESS) * (slot - 1))
            with self._changed:
                del self._workers[slot]
            if self._is_stopping.is_set():
                return
            has_failed = not worker.is_ready or time.monotonic() - started_at < _SHORT_LIFE_SECONDS
            failures = failures + 1 if has_failed else 0
            self.on_death(slot)
            has_never_served = not (worker.is_ready or self._has_started)
            if has_never_served or (failures >= _MOST_FAILURES and not self.alive):
                self._give_up()
                return
            why = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            _log.error("worker process %d (%d) %s; another one takes its place", slot, worker.process.pid, why)
            if failures > 1:
                self._is_stopping.wait(min(_FIRST_DELAY_SECONDS * 2 ** (failures - 2), _LONGEST_DELAY_SECONDS))

    def _start(self, slot: int) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        descriptors = theirs.fileno(), self._listener.fileno(), self._counts.fileno()
        program = _PROGRAM.format(sys.path, self._module, *descriptors)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", program, f"worker {slot}"]
        with theirs:
            # A session of its own: Ctrl-C at the terminal reaches the supervisor alone.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors, start_new_session=True)
        handlers = {**self.handlers(slot), "ready": lambda: self._note_ready(slot)}
        worker = WorkerProcess(slot, process, Channel(ours, handlers, lambda: None))
        with self._changed:
            self._workers[slot] = worker
        worker.channel.post("setup", *self.setup(slot))
        return worker

    def _note_ready(self, slot: int) -> None:
        with self._changed:
            worker = self._workers[slot]
            worker.is_ready = True
            self._changed.notify_all()
        # Only now, when nothing that changes can be missed.
        self.on_ready(worker.channel)

    def _give_up(self) -> None:
        with self._changed:
            self.has_given_up = True
            self._changed.notify_all()
        if self._has_started:
            _log.error("no worker process can be started any more; the proxy stops")
            os.kill(os.getpid(), signal.SIGTERM)
