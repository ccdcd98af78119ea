"""Where the admin listener listens: the wanted port, the next free one, and machines without IPv4."""

import errno
import os
import socket
import unittest
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.features.dashboard import service


class ListenTest(unittest.TestCase):
    def listen(self, host: str, port: int) -> socket.socket:
        return self.enterContext(service.listen(host, port))

    @unittest.skipIf(os.name == "nt", "there a port that is bound cannot be bound again")
    def test_a_port_that_another_program_has_bound_at_the_same_moment_is_busy(self) -> None:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            port, real_bind = other.getsockname()[1], socket.socket.bind

            def bind(sock: socket.socket, address: tuple[str, int]) -> None:
                real_bind(sock, address)
                if address[1] == port:
                    other.listen()

            with mock.patch.object(socket.socket, "bind", bind):
                self.assertNotEqual(port, self.listen("localhost", port).getsockname()[1])

    def test_after_twenty_busy_ports_any_will_do(self) -> None:
        tried = []

        def listen_at(address: tuple[str, int], **_: object) -> socket.socket:
            tried.append(address[1])
            if address[1]:
                raise OSError(errno.EADDRINUSE, "Address already in use")
            return socket.socket()

        with mock.patch("socket.create_server", listen_at):
            self.listen("localhost", 65530)
        self.assertEqual([65530, 65531, 65532, 65533, 65534, 65535, 0], tried)

    def test_a_machine_without_ipv4_has_it_on_ipv6(self) -> None:
        def listen_at(address: tuple[str, int], **_: object) -> socket.socket:
            if address[0] == "127.0.0.1":
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            self.assertEqual("::1", address[0])
            return socket.socket()

        with mock.patch("socket.create_server", listen_at):
            self.listen("localhost", 9001)

    def test_a_host_of_another_machine_is_refused_with_the_remedy(self) -> None:
        for host in ("192.0.2.1", "no.such.host.invalid", "x" * 300):
            with self.subTest(host[:30]), self.assertRaisesRegex(StartupError, "choose another --admin-host, or turn"):
                service.listen(host, 0)

    def test_without_a_thread_the_port_is_given_back(self) -> None:
        sock = service.listen("localhost", 0)
        with (
            mock.patch.object(service, "start_thread", return_value=None),
            mock.patch.object(service, "listen", return_value=sock),
            self.assertRaisesRegex(StartupError, "no more threads"),
        ):
            loaded = LoadedConfig(ProxyConfig(reasoning_content_path=Path(":memory:")), {})
            service.AdminService(mock.Mock(), loaded, Path())
        self.assertEqual(-1, sock.fileno())
