"""Opening a connection: names, addresses, proxies and certificates that fail, and clients that disconnect meanwhile."""

import errno
import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamDropped, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.http1.messages import Peer
from deepseek_cursor_proxy.net.wait import Deadline
from deepseek_cursor_proxy.upstream import connections
from deepseek_cursor_proxy.upstream.client import Call, UpstreamClient
from deepseek_cursor_proxy.upstream.connections import (
    Address,
    Connection,
    Connector,
    ConnectTimeout,
    Destination,
    Origin,
)
from tests.support.harness import SocketTestCase
from tests.support.polling import wait_until
from tests.support.ports import closed_port
from tests.support.raw_upstream import CERTIFICATE, KEEP, KEY, RawUpstream, ScriptedReply, TunnelProxy
from tests.support.threads import in_background
from tests.unit.net.test_wait import Client

PATIENCE = 20.0
SECRET = "sk-this-key-must-not-travel"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = ScriptedReply.of(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", KEEP)


def answering(_: bytes) -> ScriptedReply:
    return ANSWER


class ConnectingTestCase(SocketTestCase):
    def upstream(self, respond: Callable[[bytes], ScriptedReply] = answering, *, tls: bool = True) -> RawUpstream:
        return self.enterContext(RawUpstream(respond, tls=tls))

    def tunnel(self, target: int, *reply: bytes) -> TunnelProxy:
        return self.enterContext(TunnelProxy(target, *reply))

    def call(
        self, url: str, *, peer: Peer | None = None, environment: dict[str, str] | None = None, **settings: Any
    ) -> bytes:
        """What a call with our secret brings back; the environment is this one and nothing else."""
        with mock.patch.dict(os.environ, environment or {}, clear=True):
            config = ProxyConfig(**{"connect_timeout": PATIENCE, **settings})
            destination = Destination(f"{url}/chat/completions")
            with (
                closing(UpstreamClient(config)) as upstream,
                closing(upstream.send(Call(destination, SECRET, BODY, peer))) as answer,
            ):
                return answer.read()

    def failure(self, url: str, kind: type[ProxyError], **details: Any) -> str:
        with self.assertRaises(kind) as caught:
            self.call(url, **details)
        self.assertNotIn(SECRET, caught.exception.message)
        return caught.exception.message

    def leaving(self, moment: Callable[[], object]) -> Peer:
        ours, theirs = map(self.enterContext, socket.socketpair())

        def leave() -> None:
            moment()
            theirs.close()

        in_background(self, leave)
        return Client(ours)


TRUSTED = {"SSL_CERT_FILE": str(CERTIFICATE)}


class TestTls(ConnectingTestCase):
    def test_a_trusted_certificate_works(self) -> None:
        upstream = self.upstream()
        self.assertEqual(b"{}", self.call(upstream.url, environment=TRUSTED))
        self.assertIn(SECRET.encode(), upstream.requests[0])

    def test_an_untrusted_certificate_never_sees_the_key(self) -> None:
        upstream = self.upstream()
        message = self.failure(upstream.url, UpstreamFailed)
        # The message depends on whether this machine trusts any authority.
        self.assertRegex(message, "certificate of localhost is not trusted|no certificate authority")
        self.assertIn("SSL_CERT_FILE", message)
        self.assertEqual([], upstream.requests)

    def test_a_python_without_certificate_authorities_says_so_and_names_the_remedy(self) -> None:
        """python.org's Python for macOS has none until its "Install Certificates.command" was run."""
        upstream = self.upstream()
        for platform, environment, remedy in (
            ("darwin", {}, 'Run "Install Certificates.command"'),
            ("linux", {}, "Install your system's package ca-certificates"),
            ("linux", {"SSL_CERT_FILE": "/empty"}, "There are none in SSL_CERT_FILE (/empty)"),
        ):
            with (
                self.subTest(remedy),
                mock.patch.object(sys, "platform", platform),
                mock.patch.object(ssl, "create_default_context", return_value=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)),
            ):
                message = self.failure(upstream.url, UpstreamFailed, environment=environment)
                self.assertIn("Python has no certificate authority to check localhost with", message)
                self.assertIn(remedy, message)
        self.assertEqual([], upstream.requests)

    def test_a_certificate_for_another_name_never_sees_the_key(self) -> None:
        upstream = self.upstream()
        url = upstream.url.replace("localhost", "127.0.0.1")
        self.assertIn("127.0.0.1", self.failure(url, UpstreamFailed, environment=TRUSTED))
        self.assertEqual([], upstream.requests)

    def test_a_handshake_that_stalls_is_a_timeout(self) -> None:
        stalled = self.upstream(tls=False)
        url = f"https://127.0.0.1:{stalled.port}"
        self.assertIn("cannot be reached in time", self.failure(url, UpstreamTimeout, connect_timeout=0.1))
        self.assertTrue(stalled.hung_up.wait(PATIENCE))

    def test_a_handshake_that_is_cut_off_may_be_retried(self) -> None:
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))

        def cut() -> None:
            with listener.accept()[0] as accepted:
                accepted.recv(1)

        in_background(self, cut)
        self.failure(f"https://127.0.0.1:{listener.getsockname()[1]}", UpstreamDropped)

    def test_a_client_that_leaves_during_the_handshake_ends_it(self) -> None:
        stalled = self.upstream(tls=False)
        peer = self.leaving(lambda: wait_until(lambda: stalled.connections == 1))
        with self.assertRaises(ClientGone):
            self.call(f"https://127.0.0.1:{stalled.port}", peer=peer)
        self.assertTrue(stalled.hung_up.wait(PATIENCE))

    def test_a_server_that_never_reads_is_a_timeout_inside_tls_too(self) -> None:
        """Its session tickets lie there unread: a wait for "readable or writable" would never wait, nor ever end."""
        port = self.secured_server(lambda secured: None)
        waits: list[int] = []
        wait_either = connections.wait_either

        def count(*arguments: Any) -> Any:
            waits.append(1)
            return wait_either(*arguments)

        with mock.patch.dict(os.environ, TRUSTED), mock.patch.object(connections, "wait_either", count):
            connection = Connector(ProxyConfig(), {}).open(Origin("https", "localhost", port))
            self.addCleanup(connection.close)
            with self.assertRaises(TimeoutError):
                connection.send(b"x" * 30_000_000, 0.1, None)
        self.assertLess(len(waits), 1000)

    def test_an_answer_before_the_request_is_sent_is_read_inside_tls_too(self) -> None:
        def refuse_early(secured: ssl.SSLSocket) -> None:
            secured.recv(1000)
            secured.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")

        port = self.secured_server(refuse_early)
        with mock.patch.dict(os.environ, TRUSTED, clear=True):
            upstream = self.enterContext(closing(UpstreamClient(ProxyConfig())))
            with self.assertRaises(ProxyError) as caught:
                destination = Destination(f"https://localhost:{port}/chat/completions")
                upstream.send(Call(destination, SECRET, b"x" * 30_000_000))
        self.assertEqual(413, caught.exception.status)

    def secured_server(self, serve: Callable[[ssl.SSLSocket], None]) -> int:
        """The port of a server that does this with its one connection, which it then holds until the test is over."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, KEY)
        listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        over = threading.Event()

        def run() -> None:
            accepted, _ = listener.accept()
            with accepted, context.wrap_socket(accepted, server_side=True) as secured:
                serve(secured)
                over.wait(PATIENCE)

        in_background(self, run)
        self.addCleanup(over.set)
        return int(listener.getsockname()[1])


class TestAddresses(ConnectingTestCase):
    def test_a_refused_connection_is_reported_in_the_words_of_the_system(self) -> None:
        url = f"http://127.0.0.1:{self.enterContext(closed_port())}"
        message = self.failure(url, UpstreamFailed)
        self.assertIn("cannot be reached (Connection refused)", message)
        self.assertIn(url.removeprefix("http://"), message)

    def test_a_refused_connection_is_reported_in_words_where_strerror_knows_no_socket_errors(self) -> None:
        """On Windows."""
        url = f"http://127.0.0.1:{self.enterContext(closed_port())}"
        with (
            mock.patch.object(os, "strerror", return_value="Unknown error"),
            mock.patch.object(socket, "errorTab", {errno.ECONNREFUSED: "Connection refused."}, create=True),
        ):
            self.assertIn("cannot be reached (Connection refused)", self.failure(url, UpstreamFailed))

    def origin(self, upstream: RawUpstream, host: str = "127.0.0.1") -> Origin:
        return Origin("http", host, upstream.port)

    def open(self, origin: Origin, peer: Peer | None = None, timeout: float = PATIENCE) -> Connection:
        return self.enterContext(closing(Connector(ProxyConfig(connect_timeout=timeout), {}).open(origin, peer)))

    def resolving(self, *addresses: tuple[str, int]) -> Any:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        return mock.patch.object(connections, "_resolve", return_value=found)

    def test_a_dead_address_leaves_time_for_the_next(self) -> None:
        upstream = self.upstream(tls=False)
        closed = ("127.0.0.1", self.enterContext(closed_port()))
        with self.resolving(closed, closed, ("127.0.0.1", upstream.port)):
            self.open(self.origin(upstream, "several.test"))

    def test_a_silent_address_does_not_use_up_the_time_of_the_others(self) -> None:
        upstream = self.upstream(tls=False)
        # A full queue of connects answers none, as a dropped packet would.
        silent = self.enterContext(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(4):
            filler = self.enterContext(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        with self.resolving(silent.getsockname(), ("127.0.0.1", upstream.port)):
            with mock.patch.object(connections, "_ADDRESS_SECONDS", 0.05):
                self.open(self.origin(upstream, "several.test"))
        with self.resolving(silent.getsockname()), self.assertRaises(ConnectTimeout):
            self.open(self.origin(upstream, "silent.test"), timeout=0.1)
        peer = self.leaving(lambda: None)
        with self.resolving(silent.getsockname()), self.assertRaises(ClientGone):
            self.open(self.origin(upstream, "silent.test"), peer)

    def test_when_all_addresses_are_dead_the_failure_is_that_of_the_last(self) -> None:
        closed = ("127.0.0.1", self.enterContext(closed_port()))
        with self.resolving(closed, closed), self.assertRaises(ConnectionRefusedError):
            self.open(Origin("http", "several.test", 1))

    def resolve(self, host: str, port: int, seconds: float = PATIENCE, peer: Peer | None = None) -> list[Address]:
        return connections.resolve(host, port, Deadline.after(seconds), peer)

    def test_a_slow_lookup_ends_with_its_deadline_or_its_client(self) -> None:
        answer = threading.Event()
        self.addCleanup(answer.set)

        def resolved(_host: str, _port: int, flags: int) -> Any:
            if flags:
                raise socket.gaierror(socket.EAI_NONAME, "not numeric")
            answer.wait(PATIENCE)
            return []

        with mock.patch.object(connections, "_resolve", resolved):
            with self.assertRaises(ConnectTimeout):
                self.resolve("slow.test", 1, 0.01)
            with self.assertRaises(ClientGone):
                self.resolve("slow.test", 1, peer=self.leaving(lambda: None))

    def test_an_address_is_resolved_without_a_thread(self) -> None:
        with mock.patch("threading.Thread", side_effect=AssertionError("a thread")):
            self.assertEqual(("127.0.0.1", 80), self.resolve("127.0.0.1", 80)[0][4])
            self.assertEqual(("::1", 80), self.resolve("::1", 80)[0][4][:2])

    def test_a_name_that_cannot_exist_is_a_failure_with_a_reason(self) -> None:
        for name in ("no-such-host.invalid", "a" * 64 + ".test", "a..b"):
            with self.subTest(name), self.assertRaises(socket.gaierror):
                self.resolve(name, 80)

    def test_no_thread_for_a_lookup_is_a_failure_like_any_other(self) -> None:
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            with self.assertRaises(OSError):
                self.resolve("localhost", 80)
        self.resolve("localhost", 80)


class TestProxies(ConnectingTestCase):
    URL = "https://api.example.test"

    def environment(self, proxy: TunnelProxy, user: str = "") -> dict[str, str]:
        return {**TRUSTED, "HTTPS_PROXY": f"http://{user}127.0.0.1:{proxy.port}"}

    def test_https_goes_through_an_https_proxy_which_never_sees_the_key(self) -> None:
        upstream = self.upstream()
        proxy = self.tunnel(upstream.port)
        environment = self.environment(proxy, "me:p%40ss@")
        self.assertEqual(b"{}", self.call(self.URL, environment=environment))
        (head,) = proxy.heads
        self.assertRegex(head, rb"^CONNECT api.example.test:443 HTTP/1.1\r\nHost: api.example.test:443\r\n")
        self.assertIn(b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n", head)
        self.assertNotIn(SECRET.encode(), head + proxy.seen)
        self.assertNotIn(b"Proxy-Authorization", upstream.requests[0])

    def test_the_certificate_is_verified_behind_an_https_proxy_too(self) -> None:
        upstream = self.upstream()
        environment = self.environment(self.tunnel(upstream.port))
        self.failure("https://other.example.test", UpstreamFailed, environment=environment)
        self.assertEqual([], upstream.requests)

    def test_plain_http_goes_through_no_proxy(self) -> None:
        upstream = self.upstream(tls=False)
        proxy = self.tunnel(upstream.port)
        names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
        environment = dict.fromkeys(names, f"http://127.0.0.1:{proxy.port}")
        self.assertEqual(b"{}", self.call(upstream.url, environment=environment))
        self.assertEqual(0, proxy.connections)

    def test_hosts_can_be_exempt_from_the_https_proxy(self) -> None:
        upstream = self.upstream()
        proxy = self.tunnel(upstream.port)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", upstream.port))]
        with mock.patch.object(connections, "_resolve", return_value=found):
            for exempt in ("example.test", "*"):
                environment = {**self.environment(proxy), "NO_PROXY": exempt}
                self.assertEqual(b"{}", self.call(self.URL, environment=environment))
        self.assertEqual(0, proxy.connections)

    def test_the_refusal_of_an_https_proxy_is_an_error_with_its_name_and_without_its_password(self) -> None:
        for reply, kind, words in (
            (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", UpstreamFailed, "user and the password"),
            (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nNever", UpstreamFailed, "(403)"),
            (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1\r\n\r\n", UpstreamFailed, "(302)"),
            (b"HTTP/1.1 503 Busy\r\n\r\n", UpstreamDropped, "(503)"),
            (b"SSH-2.0-OpenSSH_9.0\r\n\r\n", UpstreamFailed, "does not answer as an HTTP proxy"),
            (b"HTTP/1.1 200 OK\r\n\r\nwelcome", UpstreamFailed, "it sent data after its CONNECT response"),
            (b"HTTP/1.1 2", UpstreamDropped, "closed the connection"),
            (b"", UpstreamTimeout, "in time"),
        ):
            with self.subTest(reply):
                proxy = self.tunnel(1, reply)
                environment = self.environment(proxy, "me:hidden@")
                timeout = PATIENCE if reply else 0.1
                message = self.failure(self.URL, kind, environment=environment, connect_timeout=timeout)
                self.assertIn(f"127.0.0.1:{proxy.port}", message)
                self.assertIn(words, message)
                self.assertNotIn("hidden", message)

    def test_an_https_proxy_that_is_not_there_is_named(self) -> None:
        environment = {"HTTPS_PROXY": f"http://127.0.0.1:{self.enterContext(closed_port())}"}
        self.assertIn("Check network and HTTPS_PROXY", self.failure(self.URL, UpstreamFailed, environment=environment))

    def test_an_https_proxy_that_cannot_be_used_is_a_failure_of_the_call(self) -> None:
        """Start-up refuses it already; outside code that builds the proxy finds out here."""
        environment = {"HTTPS_PROXY": "socks5://127.0.0.1:1080"}
        self.assertIn("socks5://", self.failure(self.URL, UpstreamFailed, environment=environment))

    def test_a_client_that_leaves_while_the_https_proxy_connects_ends_the_call(self) -> None:
        proxy = self.tunnel(1, b"")
        peer = self.leaving(lambda: wait_until(lambda: proxy.heads))
        with self.assertRaises(ClientGone):
            self.call(self.URL, peer=peer, environment=self.environment(proxy))
        self.assertTrue(proxy.hung_up.wait(PATIENCE))
