"""Real servers on loopback: one redis-server or a cluster of six.

The program is the one on the PATH, else that of Debian's packages. Each server has a free port and a temporary
directory, writes no snapshot and is killed when its ExitStack is closed.
"""

import os
import shutil
import signal
import socket
import subprocess
import unittest
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from deepseek_cursor_proxy.features.redis.connection import Dialer, Node, RedisAddress, RedisUnavailable, Reply
from deepseek_cursor_proxy.net.wait import Deadline
from tests.interop import packages
from tests.support.polling import wait_until

_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
# A server that writes its log does not wait for the disk: these tests kill it, not the machine.
_QUIET = {
    "save": "", "appendonly": "no", "appendfsync": "no", "loglevel": "warning", "bind": "127.0.0.1",
    "protected-mode": "no",
}  # fmt: skip
_EMPTY = '""'
# A node is taken for dead so soon; the default is 15 s.
_NODE_TIMEOUT_MS = 1000


@cache
def _program() -> tuple[str, dict[str, str]]:
    """The path of redis-server and what its environment needs. Raises SkipTest."""
    path = shutil.which("redis-server")
    if path is not None:
        return path, {}
    root = packages.debian("redis-server", *_PACKAGES)
    libraries = os.pathsep.join(str(each) for each in root.glob("usr/lib/*-linux-*"))
    return str(root / "usr" / "bin" / "redis-server"), {"LD_LIBRARY_PATH": libraries}


def free_port() -> int:
    """A port that is free; below the range that the system gives to connections, as a cluster needs port + 10,000."""
    for port in range(20000 + os.getpid() % 5000, 32000):
        try:
            for each in (port, port + 10000):
                socket.create_server(("127.0.0.1", each)).close()
        except OSError:
            continue
        if port not in _given:
            _given.add(port)
            return port
    raise unittest.SkipTest("no port is free")


_given: set[int] = set()


class RedisServer:
    """A redis-server; killed, stopped and started by tests."""

    def __init__(self, stack: ExitStack, options: Mapping[str, str] | None = None, *, mode: str = "") -> None:
        self.port = free_port()
        self.folder = Path(stack.enter_context(TemporaryDirectory(prefix="redis-")))
        self._config = self.folder / "redis.conf"
        self._mode = mode
        settings = {"port": str(self.port), "dir": str(self.folder), **({} if mode else _QUIET), **(options or {})}
        lines = [f"{name.partition('#')[0]} {value or _EMPTY}" for name, value in settings.items()]
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None
        stack.callback(self.kill)
        self.start()

    @property
    def node(self) -> Node:
        return Node("127.0.0.1", self.port)

    def start(self) -> None:
        path, environment = _program()
        command = [path, str(self._config), *([self._mode] if self._mode else [])]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        wait_until(self._accepts)

    def _accepts(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def suspend(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def run(self, *words: str | bytes, login: tuple[bytes, ...] = ()) -> Reply:
        address = RedisAddress("test", (self.node,), login)
        connection = Dialer(address).open(self.node, Deadline.after(5))
        try:
            encoded = tuple(word if isinstance(word, bytes) else word.encode() for word in words)
            [reply] = connection.exchange([encoded], Deadline.after(5))
            return reply
        finally:
            connection.close()


class RedisCluster:
    def __init__(self, stack: ExitStack) -> None:
        options = {"cluster-enabled": "yes", "cluster-node-timeout": str(_NODE_TIMEOUT_MS)}
        # A replica that has just come up would otherwise wait before it may take over.
        options |= {
            "cluster-replica-validity-factor": "0",
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
        }
        self.servers = [RedisServer(stack, options) for _ in range(6)]
        self.masters, self.replicas = self.servers[:3], self.servers[3:]
        first = self.servers[0]
        for server in self.servers[1:]:
            first.run("CLUSTER", "MEET", "127.0.0.1", str(server.port))
        for index, server in enumerate(self.masters):
            low, high = index * 16384 // 3, (index + 1) * 16384 // 3 - 1
            server.run("CLUSTER", "ADDSLOTSRANGE", str(low), str(high))
        for master, replica in zip(self.masters, self.replicas, strict=True):
            name = master.run("CLUSTER", "MYID")
            assert isinstance(name, bytes)
            wait_until(lambda replica=replica, name=name: replica.run("CLUSTER", "REPLICATE", name) == "OK")
        wait_until(lambda: all(b"cluster_state:ok" in _bytes(each.run("CLUSTER", "INFO")) for each in self.servers))
        wait_until(lambda: all(b"master_link_status:up" in _bytes(each.run("INFO")) for each in self.replicas))
        # Every node has to know the replicas before one of them can be elected.
        wait_until(lambda: all(_bytes(each.run("CLUSTER", "NODES")).count(b"slave") == 3 for each in self.servers))

    @property
    def url(self) -> str:
        return f"redis://{','.join(str(server.node) for server in self.masters)}/?cluster=1"


def _bytes(reply: Reply) -> bytes:
    return reply if isinstance(reply, bytes) else b""


def answers(server: RedisServer) -> bool:
    try:
        return server.run("PING") == "PONG"
    except RedisUnavailable:
        return False
