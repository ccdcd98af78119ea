"""A relay in front of a server that is far away: what either side sends arrives so much later, and in its order."""

import contextlib
import queue
import socket
import threading
import time

from tests.support.polling import PATIENCE


class SlowRelay:
    """Delays by `seconds` each way, so that a round trip takes twice as long; tests change them at any time."""

    def __init__(self, port: int, seconds: float) -> None:
        self.seconds = seconds
        self._target = port
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "SlowRelay":
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/"
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        _shut_down(self._listener)
        self._threads[0].join(PATIENCE)
        for each in self._sockets:
            _shut_down(each)
        for thread in self._threads:
            thread.join(PATIENCE)
        for each in (self._listener, *self._sockets):
            each.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="slow-relay", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(far)
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for one, other in ((near, far), (far, near)):
                    on_its_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    self._start(self._read, one, on_its_way)
                    self._start(self._write, other, on_its_way)

    def _read(self, sock: socket.socket, on_its_way: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        data = b"x"
        while data:
            data = b""
            with contextlib.suppress(OSError):
                data = sock.recv(65536)
            on_its_way.put((time.monotonic() + self.seconds, data))

    def _write(self, sock: socket.socket, on_its_way: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
        with contextlib.suppress(OSError):
            while True:
                arrival, data = on_its_way.get()
                self._closing.wait(arrival - time.monotonic())
                if not data:
                    sock.shutdown(socket.SHUT_RDWR)
                    return
                sock.sendall(data)


def _shut_down(sock: socket.socket) -> None:
    # Closing alone does not end a call on another thread.
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
