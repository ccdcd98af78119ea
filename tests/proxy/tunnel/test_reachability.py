"""Whether a URL leads to this proxy: asked over sockets, of a proxy and of others."""

import contextlib
import os
import socket
import threading
from unittest import mock

from deepseek_cursor_proxy.cli.tunnel import supervisor
from deepseek_cursor_proxy.cli.tunnel.supervisor import OURS
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.ngrok_stand_in import Agent
from tests.support.tunnel_edge import Edge


class ReachabilityTest(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {"no_proxy": "*", "NO_PROXY": "*"}))

    def root(self, proxy: RunningProxy) -> str:
        return proxy.url.removesuffix("/v1")

    def test_a_proxy_recognises_itself_and_no_other(self) -> None:
        proxy, other = self.proxy(), self.proxy()
        self.assertEqual(OURS, supervisor.ask(self.root(proxy), *proxy.server.probe))
        reach = supervisor.ask(self.root(other), *proxy.server.probe)
        self.assertEqual((False, True, "something else answers there, with 404"), reach)

    def test_a_proxy_recognises_itself_through_tls_and_after_a_reload(self) -> None:
        proxy = self.proxy()
        edge = self.enterContext(contextlib.closing(Edge(lambda: proxy.address[1])))
        with mock.patch.dict(os.environ, edge.environment):
            self.assertEqual(OURS, supervisor.ask(edge.url, *proxy.server.probe))
        proxy.server.reconfigure(proxy.server.config)
        self.assertEqual(OURS, supervisor.ask(self.root(proxy), *proxy.server.probe))

    def test_a_certificate_that_is_not_trusted_is_named(self) -> None:
        proxy = self.proxy()
        edge = self.enterContext(contextlib.closing(Edge(lambda: proxy.address[1])))
        reach = supervisor.ask(edge.url, *proxy.server.probe)
        self.assertFalse(reach.is_answered)
        self.assertIn("CERTIFICATE_VERIFY_FAILED", reach.problem)

    def test_a_check_needs_no_key_and_pins_none(self) -> None:
        proxy = self.proxy(tunnel="cloudflared", ngrok=True)
        self.assertEqual(OURS, supervisor.ask(self.root(proxy), *proxy.server.probe))
        closed = self.proxy(tunnel="cloudflared", access_keys=["sk-only-this-one-is-served"])
        self.assertEqual(OURS, supervisor.ask(self.root(closed), *closed.server.probe))

    def test_another_program_is_not_taken_for_us(self) -> None:
        path, answer = self.running.server.probe
        agent = self.enterContext(contextlib.closing(Agent({path: b"<html>"})))
        self.assertEqual("something else answers there", supervisor.ask(agent.api, path, answer).problem)

    def test_a_page_that_redirects_to_us_is_not_taken_for_us(self) -> None:
        proxy = self.proxy()

        def answer(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            with connection:
                path = connection.recv(10_000).split()[1].decode()
                head = f"HTTP/1.1 302 Found\r\nLocation: {self.root(proxy)}{path}\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(head.encode())

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=answer, args=(listener,))
            thread.start()
            reach = supervisor.ask(f"http://127.0.0.1:{listener.getsockname()[1]}", *proxy.server.probe)
            thread.join()
        self.assertEqual((False, True, "something else answers there, with 302"), reach)

    def test_no_answer_is_told_apart_from_a_wrong_one(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            reach = supervisor.ask(f"http://127.0.0.1:{unused.getsockname()[1]}", "/probe/x", "y")
        self.assertEqual((False, False), reach[:2])
        self.assertRegex(reach.problem, "^no answer: .+")

    def test_the_path_is_another_one_for_every_proxy(self) -> None:
        one, other = self.proxy().server.probe, self.proxy().server.probe
        self.assertEqual(4, len({*one, *other}))
