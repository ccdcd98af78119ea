"""The public end of a tunnel, on this machine: TLS at https://localhost:PORT, handed on to a port of ours."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

from tests.support.raw_upstream import CERTIFICATE, KEY


class Edge:
    """Hands every connection on to the port that `target` names then; one request each, as the check sends it."""

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, KEY)
        self._listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.url = f"https://localhost:{self._listener.getsockname()[1]}"
        # A program that trusts the certificate.
        self.environment = {"SSL_CERT_FILE": str(CERTIFICATE), "NO_PROXY": "localhost"}
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._listener.fileno() != -1:
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                with client:
                    self._hand_on(client)

    def _hand_on(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := client.recv(65536)):
                return
            head += data
        with socket.create_connection(("127.0.0.1", self._target()), 10) as proxy:
            proxy.sendall(head)
            while data := proxy.recv(65536):
                client.sendall(data)

    def close(self) -> None:
        address = self._listener.getsockname()
        with contextlib.suppress(OSError):
            # Not every system wakes up an accept() when its socket is closed.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):
            socket.create_connection(address, 0.1).close()
        self._thread.join()
