"""Channel: the supervisor and one of its worker processes post messages and ask questions over a socket pair.

Both ends are processes of ours that inherited the pair, so messages are pickled. `post` never waits for the other
process: a thread sends what was posted, many messages at a time, and the oldest are dropped if nothing is read there.
"""

import copyreg
import itertools
import logging
import pickle
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from deepseek_cursor_proxy.net.threads import start_thread

_log = logging.getLogger(__name__)

# Messages that the other process has not read yet; a busy proxy posts a thousand in a second.
_MOST_WAITING = 10_000
# A question, its answer, and what the other process does for it.
ASK_SECONDS = 2.0


def _freeze(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda proxy: (_freeze, (dict(proxy),)))


class Channel:
    """Any thread may call it. Handlers of posts run on the reading thread, handlers of questions on one each."""

    def __init__(
        self, sock: socket.socket, handlers: Mapping[str, Callable[..., Any]], on_end: Callable[[], object]
    ) -> None:
        """`on_end` is called on the reading thread when the other process has ended or closed its end."""
        self._sock = sock
        self._handlers = handlers
        self._on_end = on_end
        # Number, name and values; a post has the number 0, an answer no name. Appending and popping are atomic.
        self._waiting: deque[tuple[int, str, tuple[Any, ...]]] = deque(maxlen=_MOST_WAITING)
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._is_closing = False
        # By number: where the answer to a question goes.
        self._asked: dict[int, queue.SimpleQueue[Any]] = {}
        self._threads = [
            threading.Thread(target=run, name=f"channel-{run.__name__[1:]}", daemon=True)
            for run in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def post(self, name: str, *values: Any) -> None:
        self._send(0, name, values)

    def ask(self, name: str, *values: Any) -> Callable[[float], Any]:
        """Send a question. Returns a function that waits for the answer; None if none comes in so many seconds."""
        number, answers = next(self._numbers), queue.SimpleQueue[Any]()
        self._asked[number] = answers
        self._send(number, name, values)

        def wait(seconds: float) -> Any:
            with suppress(queue.Empty):
                return answers.get(timeout=max(0.0, seconds))
            self._asked.pop(number, None)
            return None

        return wait

    def close(self) -> None:
        """Send what was posted, and end both threads; not for a handler to call."""
        self._is_closing = True
        self._wake.put(False)
        self._threads[1].join(ASK_SECONDS)
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._sock.close()

    def _send(self, number: int, name: str, values: tuple[Any, ...]) -> None:
        self._waiting.append((number, name, values))
        self._wake.put(True)

    def _write(self) -> None:
        with suppress(OSError):
            is_open = True
            while is_open:
                is_open = self._wake.get()
                messages = [self._waiting.popleft() for _ in range(len(self._waiting))]
                if messages:
                    self._sock.sendall(pickle.dumps(messages))

    def _read(self) -> None:
        with suppress(OSError, EOFError, pickle.UnpicklingError), self._sock.makefile("rb") as file:
            while True:
                for number, name, values in pickle.load(file):
                    self._receive(number, name, values)
        for answers in list(self._asked.values()):
            answers.put(None)
        if not self._is_closing:
            self._on_end()

    def _receive(self, number: int, name: str, values: tuple[Any, ...]) -> None:
        if not number:
            self._call(name, values)
        elif name:
            start_thread(partial(self._answer, number, name, values), "channel-answer")
        elif (answers := self._asked.pop(number, None)) is not None:
            answers.put(values[0])

    def _answer(self, number: int, name: str, values: tuple[Any, ...]) -> None:
        self._send(number, "", (self._call(name, values),))

    def _call(self, name: str, values: tuple[Any, ...]) -> Any:
        try:
            return self._handlers[name](*values)
        except Exception as error:
            # A bug costs this message.
            _log.error("unexpected %s in the message %s of another process", type(error).__name__, name)
            return None
