"""nginx before two proxies, with the file that the compose file of a team mounts: `.github/docker/nginx.team.conf`."""

import os
import shutil
import socket
import subprocess
import unittest

from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from tests.fake_deepseek import Answer
from tests.support.harness import PATIENCE, RunningProxy, SocketTestCase, read_reply, read_until, request_bytes
from tests.support.polling import wait_until
from tests.support.ports import server_port
from tests.support.systems import ROOT

CONFIGURATION = ROOT / ".github" / "docker" / "nginx.team.conf"
# Debian's place for it is not on every PATH.
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
HELLO = Answer(reasoning="Hm.", content="Hello.")
CHAT = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": "Hi"}]}


@unittest.skipIf(NGINX is None, "nginx is not installed")
class NginxTest(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.proxies = [self.proxy(), self.proxy()]
        self.address = ("127.0.0.1", self.start())

    def start(self) -> int:
        """Run nginx with the file, its names and ports replaced; its port."""
        port = self.enterContext(server_port())
        text = CONFIGURATION.read_text(encoding="utf-8").replace("listen 8080;", f"listen 127.0.0.1:{port};")
        for number, proxy in enumerate(self.proxies, 1):
            text = text.replace(f"proxy{number}:9000", "{}:{}".format(*proxy.address))
        places = [
            f"{kind}_temp_path {self.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        ]
        text = text.replace("http {", "\n".join(["http {", *places]), 1)
        file = self.folder / "nginx.conf"
        file.write_text(
            f"daemon off;\npid {self.folder}/pid;\nerror_log {self.folder}/errors;\n{text}", encoding="utf-8"
        )
        process = subprocess.Popen([str(NGINX), "-p", str(self.folder), "-c", str(file)], stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        wait_until(lambda: (self.folder / "pid").exists() or process.poll() is not None)
        self.assertIsNone(process.poll(), "nginx refuses the file")
        return port

    def ask(self, key: str) -> int:
        self.fake.answer(HELLO)
        with socket.create_connection(self.address, PATIENCE) as sock:
            sock.sendall(request_bytes(CHAT, key=key))
            return read_reply(sock).status

    def served(self, proxy: RunningProxy) -> int:
        return len(proxy.server.services().get(RequestLog).ended())

    def test_a_stream_passes_as_it_comes(self) -> None:
        self.fake.answer(Answer(reasoning="A thought.", content="The rest.", piece=10, stall_after=3))
        with socket.create_connection(self.address, PATIENCE) as sock:
            sock.sendall(request_bytes({**CHAT, "stream": True}))
            read_until(sock, b"A thought.")
            self.fake.release.set()
            read_until(sock, b"[DONE]")

    def test_a_key_stays_at_its_proxy_until_that_one_is_gone(self) -> None:
        one, two = self.proxies
        # The ports decide which key goes where; of twelve keys all went to one proxy in one of a thousand runs.
        keys = [f"sk-of-person-{number}" for number in range(40)]
        for key in keys * 2:
            self.assertEqual(200, self.ask(key))
        logs = [proxy.server.services().get(RequestLog) for proxy in self.proxies]
        by_proxy = [{each.facts.key for each in log.ended()} for log in logs]
        self.assertEqual(2 * len(keys), self.served(one) + self.served(two))
        self.assertTrue(all(by_proxy) and by_proxy[0].isdisjoint(by_proxy[1]), by_proxy)
        one.close()
        self.assertEqual({200}, {self.ask(key) for key in keys})
