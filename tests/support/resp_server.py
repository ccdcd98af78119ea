"""A stand-in for a Redis or Valkey server, in this process: one thread per connection, the data in dicts.

    server = self.enterContext(RespServer())
    RedisClient(RedisAddress.parse(server.url))

Tests make it fail: `pause` (as SIGSTOP does), `stop`, `start` (on the same
port), `refusal` (an error reply to every command), `password`. `RespCluster` is some of them with the slots shared out.
The commands, and how scripts run without Lua, are in `resp_commands`.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.features.redis.client import SLOTS, key_of, slot_of
from deepseek_cursor_proxy.features.redis.connection import ReplyError
from tests.support.polling import PATIENCE
from tests.support.ports import server_port
from tests.support.raw_upstream import CERTIFICATE, KEY
from tests.support.resp_commands import CommandError, Database, error_reply

_WITHOUT_LOGIN = ("AUTH", "QUIT")
_KEYLESS = frozenset(
    [*("PING", "AUTH", "SELECT", "CLUSTER", "ROLE", "INFO", "SCRIPT", "TIME", "DBSIZE", "FLUSHALL", "SCAN"), "ASKING"]
)


@dataclass
class Session:
    database: int = 0
    is_logged_in: bool = False
    is_asking: bool = False


class RespServer:
    """The lock makes commands run one after the other; tests set the attributes at any time."""

    def __init__(self, *, password: str = "", has_tls: bool = False) -> None:
        self.password = password
        self.users: dict[str, str] = {}
        self._tls_context = _tls_context() if has_tls else None
        # An error reply to every command but AUTH, such as "LOADING …".
        self.refusal = ""
        self.role = b"master"
        self.cluster: RespCluster | None = None
        # Every command, as it came.
        self.commands: list[tuple[bytes, ...]] = []
        self.accepted = 0
        self._offset = 0.0
        self._databases: dict[int, Database] = {}
        self._scripts: set[bytes] = set()
        self._lock = threading.RLock()
        self._running = threading.Event()
        self._running.set()
        self._listener: socket.socket | None = None
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._held_port = server_port()

    def __enter__(self) -> "RespServer":
        self.port = self._held_port.__enter__()
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()
        self._held_port.__exit__(*error)

    @property
    def url(self) -> str:
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}/"

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self._start_thread(self._accept, self._listener)

    def stop(self) -> None:
        """Close everything, as a killed server does; idempotent."""
        self.resume()
        if self._listener is not None:
            # Closing alone does not end an accept() on another thread.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self.disconnect()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._threads.clear()

    def disconnect(self) -> None:
        with self._lock:
            sockets = [*self._sockets]
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def pause(self) -> None:
        """Read and answer nothing, as a stopped process; the system goes on accepting connections."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def advance(self, seconds: float) -> None:
        self._offset += seconds

    def run(self, *words: bytes) -> Any:
        """Run a command in database 0, past all connections."""
        with self._lock:
            return self._database(0).run(words)

    def _database(self, number: int) -> Database:
        if number not in self._databases:
            self._databases[number] = Database(lambda: time.time() + self._offset, loaded=self._scripts)
        return self._databases[number]

    # Connections …

    def _start_thread(self, target: Any, sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,), name="resp-server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self.accepted += 1
                self._sockets.add(sock)
            self._start_thread(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        session = Session()
        try:
            with (
                contextlib.suppress(OSError, ValueError),
                self._secured(sock) as stream,
                stream.makefile("rb") as reader,
            ):
                for command in _commands(reader):
                    self._running.wait()
                    with self._lock:
                        reply = self._answer(session, command)
                    self.send(stream, encode_reply(reply))
        finally:
            with self._lock:
                self._sockets.discard(sock)

    def _secured(self, sock: socket.socket) -> socket.socket:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if self._tls_context is None else self._tls_context.wrap_socket(sock, server_side=True)

    def send(self, sock: socket.socket, data: bytes) -> None:
        """Send a reply; tests override it to break replies."""
        sock.sendall(data)

    # Commands …

    def _answer(self, session: Session, command: tuple[bytes, ...]) -> Any:
        self.commands.append(command)
        name = command[0].upper().decode("latin-1")
        try:
            self._check(session, name, command)
            own = getattr(self, f"_do_{name.lower()}", None)
            if own is not None:
                return own(session, *command[1:])
            return self._database(session.database).run(command)
        except CommandError as error:
            return error_reply(error)
        finally:
            if name != "ASKING":
                session.is_asking = False

    def _check(self, session: Session, name: str, command: tuple[bytes, ...]) -> None:
        if (self.password or self.users) and not session.is_logged_in and name not in _WITHOUT_LOGIN:
            raise CommandError("NOAUTH Authentication required.")
        if self.refusal and name not in ("AUTH", "ROLE"):
            raise CommandError(self.refusal)
        if self.cluster is not None and name not in _KEYLESS:
            self.cluster.check(self, slot_of(key_of(command) or b""), session.is_asking)

    def _do_auth(self, session: Session, *words: bytes) -> str:
        user, password = (word.decode() for word in (b"default", *words)[-2:])
        expected = self.password if user == "default" else self.users.get(user)
        if password != expected and (expected or user != "default"):
            raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")
        session.is_logged_in = True
        return "OK"

    def _do_select(self, session: Session, number: bytes) -> str:
        if not number.isdigit() or int(number) > 15:
            raise CommandError("ERR DB index is out of range")
        session.database = int(number)
        return "OK"

    def _do_role(self, _session: Session) -> list[Any]:
        return [self.role, 0, []]

    def _do_info(self, _session: Session, *_sections: bytes) -> bytes:
        return b"# Server\r\nredis_version:7.0.0\r\n# Replication\r\nrole:%b\r\n" % self.role

    def _do_asking(self, session: Session) -> str:
        session.is_asking = True
        return "OK"

    def _do_cluster(self, _session: Session, action: bytes, *_arguments: bytes) -> Any:
        if self.cluster is None:
            raise CommandError("ERR This instance has cluster support disabled")
        if action.upper() == b"SLOTS":
            return self.cluster.slots()
        return b"cluster_state:%b\r\n" % (b"ok" if self.cluster.is_ok else b"fail")


@dataclass
class RespCluster:
    """Stand-ins that share the slots; tests move slots and stop nodes."""

    nodes: list[RespServer]
    owners: list[RespServer] = field(default_factory=list)
    # Slots on their way: the node that will have them.
    importing: dict[int, RespServer] = field(default_factory=dict)
    is_ok: bool = True

    def __post_init__(self) -> None:
        self.owners = [self.nodes[slot * len(self.nodes) // SLOTS] for slot in range(SLOTS)]
        for node in self.nodes:
            node.cluster = self

    @property
    def url(self) -> str:
        return f"redis://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/?cluster=1"

    def slots(self) -> list[Any]:
        """The reply to CLUSTER SLOTS."""
        ranges: list[Any] = []
        for slot, owner in enumerate(self.owners):
            if ranges and ranges[-1][2][1] == owner.port:
                ranges[-1][1] = slot
            else:
                ranges.append([slot, slot, [b"127.0.0.1", owner.port, b"%040d" % owner.port]])
        return ranges

    def check(self, node: RespServer, slot: int, is_asking: bool) -> None:
        """Raise the redirection, if the slot is not here."""
        if not self.is_ok:
            raise CommandError("CLUSTERDOWN The cluster is down")
        target = self.importing.get(slot)
        if target is not None and node is not target:
            raise CommandError(f"ASK {slot} 127.0.0.1:{target.port}")
        if self.owners[slot] is not node and not (is_asking and target is node):
            raise CommandError(f"MOVED {slot} 127.0.0.1:{self.owners[slot].port}")


def _tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


def _commands(reader: Any) -> Iterator[tuple[bytes, ...]]:
    while line := reader.readline():
        words = []
        for _ in range(int(line[1:])):
            length = int(reader.readline()[1:])
            words.append(reader.read(length + 2)[:-2])
        yield tuple(words)


def encode_reply(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case bool() | int():
            return b":%d\r\n" % reply
        case str():
            return b"+%b\r\n" % reply.encode()
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case ReplyError():
            return b"-%b\r\n" % reply.text.encode()
        case dict():
            return encode_reply([each for pair in reply.items() for each in pair])
        case _:
            items = [*reply]
            return b"*%d\r\n%b" % (len(items), b"".join(encode_reply(each) for each in items))
