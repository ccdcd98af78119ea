"""RedisClient: one logical server for any number of threads, a single one or a cluster.

The rules:
    1. A call takes at most CALL_SECONDS, or its `seconds` if these are more, and CALL_SECONDS again if it has to
       connect. A check has the same time, so that an engine too slow for calls counts as down.
    2. Anything that means "not now" is raised as RedisUnavailable; an error reply about a command is a ReplyError.
    3. Nothing is sent twice, but for redirected commands, which the first node did not run. After RedisUnavailable
       a write may have happened or not; only the caller knows whether it may be repeated.
    4. An engine that failed gets no more calls: they raise at once. A thread in the background checks it until every
       node answers, so no caller waits for a check. `on_change` gets one line when the engine goes, and one when it is
       back.

A RedisClient connects when it is first used. A command goes to the only server, or in a cluster to the node that has
the hash slot of its key. The map of slots is read from any node by CLUSTER SLOTS, again after every MOVED reply.
"""

import binascii
import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from deepseek_cursor_proxy.features.redis.connection import (
    Command,
    Connection,
    Dialer,
    Node,
    RedisAddress,
    RedisRefused,
    RedisUnavailable,
    Reply,
    ReplyError,
)
from deepseek_cursor_proxy.net.threads import BackgroundThread
from deepseek_cursor_proxy.net.wait import Deadline

# How long a reply may take, and connecting: a near engine needs a thousandth of it, but a busy machine stops a program
# for tenths of a second, and a lookup that ends too early costs a chat its reasoning.
CALL_SECONDS = 0.5
# So many timeouts or lost connections in a row mean that the engine is down; one may be an accident.
_MOST_FAILURES = 3
# The background checks: quick at first, because a restarted server answers in moments.
_FIRST_CHECK_SECONDS = 0.1
_MOST_CHECK_SECONDS = 1.0
_TRY_AGAIN_SECONDS = 0.01
_MOST_REDIRECTIONS = 5
# Idle connections of a node; more are closed.
_MOST_IDLE = 32
# Error replies that say "not now", whatever the command was.
_NOT_NOW = frozenset(["LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOAUTH", "WRONGPASS"])
# … and those after which the server closes the connection. The first is its NOAUTH to a command of more than ten words.
_CLOSING = ("ERR Protocol error", "ERR max number of clients")


class Script:
    """A Lua script with one key."""

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


class ScriptCall(NamedTuple):
    script: Script
    key: bytes
    arguments: Sequence[bytes]


class RedisClient:
    """Called by any thread. The lock protects `_idle`, `_failures` and `_fault`; `_reporting` the order of reports."""

    def __init__(self, address: RedisAddress, *, on_change: Callable[[str], None] = lambda text: None) -> None:
        self._address = address
        self._on_change = on_change
        self._dialer = Dialer(address)
        self._topology = ClusterMap(address) if address.is_cluster else SingleServer(address)
        self._lock = threading.Lock()
        self._idle: dict[Node, list[Connection]] = defaultdict(list)
        # Calls that failed in a row, and why the engine is not used; empty if it is.
        self._failures = 0
        self._fault = ""
        self._reporting = threading.Lock()
        self._was_available = True
        self._check_seconds = _FIRST_CHECK_SECONDS
        self._is_closed = False
        self._checks = BackgroundThread("engine-check")

    @property
    def is_available(self) -> bool:
        """Whether every node answered when it was last asked."""
        return not self._fault and not self._is_closed

    def run(self, commands: Sequence[Command], seconds: float = 0.0) -> list[Reply]:
        """The replies, in the order of the commands: one round trip per node, to all nodes at once."""
        if self._is_closed:
            raise RedisUnavailable(f"{self._address}: closed")
        if fault := self._fault:
            # If no thread could be started before, perhaps one can now.
            self._checks.run(self._check)
            raise RedisUnavailable(fault)
        try:
            replies = self._run(commands, _Budget(Deadline.after(max(seconds, CALL_SECONDS))))
        except RedisUnavailable as error:
            self._count_failure(error)
            raise
        self._failures, self._check_seconds = 0, _FIRST_CHECK_SECONDS
        return replies

    def run_scripts(self, calls: Sequence["ScriptCall"], seconds: float = 0.0) -> list[Reply]:
        """The results; the server gets the text of a script only if it does not know it yet.

        Calls after the first one that it does not know run twice.
        """
        replies = self.run([(b"EVALSHA", each.script.sha, b"1", each.key, *each.arguments) for each in calls], seconds)
        is_unknown = [isinstance(reply, ReplyError) and reply.code == "NOSCRIPT" for reply in replies]
        if any(is_unknown):
            at = is_unknown.index(True)
            rest = [(b"EVAL", each.script.source, b"1", each.key, *each.arguments) for each in calls[at:]]
            replies[at:] = self.run(rest, seconds)
        return replies

    def check_soon(self) -> None:
        """Have the background thread check the engine now; returns at once."""
        self._checks.run(self._check)

    def close(self) -> None:
        """Close all connections; idempotent. Calls that are under way end by themselves."""
        self._is_closed = True
        self._checks.close()
        self._close_idle([*self._idle])

    # Calls …

    def _run(self, commands: Sequence[Command], budget: "_Budget") -> list[Reply]:
        if not self._topology.nodes:
            with budget.for_connects() as deadline:
                self._topology.refresh(self._dialer, deadline)
        # One more for the replies to ASKING.
        replies: list[Reply] = [None] * (len(commands) + 1)
        steps = [_Step(place, command, self._topology.node_for(command)) for place, command in enumerate(commands)]
        for _ in range(_MOST_REDIRECTIONS):
            again: list[_Step] = []
            for step, reply in self._exchange(steps, budget):
                replies[step.place] = reply
                again += self._next_steps(step, reply)
            if not again:
                return replies[:-1]
            steps = again
        raise RedisRefused(f"{steps[0].node}: too many redirections")

    def _exchange(self, steps: "Sequence[_Step]", budget: "_Budget") -> "list[tuple[_Step, Reply]]":
        """Send to every node, then read from every node. A connection that was not read to its end is closed."""
        groups: dict[Node, list[_Step]] = defaultdict(list)
        for step in steps:
            groups[step.node].append(step)
        replies: list[tuple[_Step, Reply]] = []
        sent: dict[Node, Connection] = {}
        try:
            for node, group in groups.items():
                sent[node] = self._take(node, budget)
                sent[node].send([step.command for step in group], budget.deadline)
            for node, group in groups.items():
                received = sent[node].receive(budget.deadline)
                _raise_if_not_now(node, received)
                self._give_back(sent.pop(node))
                replies += zip(group, received, strict=True)
        finally:
            for connection in sent.values():
                connection.close()
        return replies

    def _next_steps(self, step: "_Step", reply: Reply) -> "list[_Step]":
        """What follows a reply that is no answer; nothing follows one that is."""
        if not self._address.is_cluster or not isinstance(reply, ReplyError):
            return []
        if reply.code == "TRYAGAIN":
            # The keys of a command are on two nodes while their slot is being moved.
            self._checks.pause(_TRY_AGAIN_SECONDS)
            return [step]
        target = redirection(reply, step.node)
        if target is None:
            return []
        if not target.is_once:
            self._checks.run(self._check)
        asking = [_Step(-1, (b"ASKING",), target.node)] if target.is_once else []
        return [*asking, step._replace(node=target.node)]

    # Connections …

    def _take(self, node: Node, budget: "_Budget") -> Connection:
        while True:
            with self._lock:
                connection = self._idle[node].pop() if self._idle[node] else None
            if connection is None:
                with budget.for_connects() as deadline:
                    return self._dialer.open(node, deadline)
            if connection.is_idle:
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            idle = self._idle[connection.node]
            is_kept = self.is_available and len(idle) < _MOST_IDLE
            if is_kept:
                idle.append(connection)
        if not is_kept:
            connection.close()

    def _close_idle(self, nodes: Iterable[Node]) -> None:
        with self._lock:
            connections = [connection for node in nodes for connection in self._idle.pop(node, ())]
        for connection in connections:
            connection.close()

    # Whether it can be used …

    def _count_failure(self, error: RedisUnavailable) -> None:
        """A refusal means that the engine is down; a timeout may be an accident, so it is checked."""
        with self._lock:
            self._failures += 1
            if isinstance(error, RedisRefused) or self._failures >= _MOST_FAILURES:
                self._fault = self._fault or str(error)
        self._checks.run(self._check)
        self._report()

    def _report(self) -> None:
        with self._reporting:
            fault = self._fault
            if (not fault) == self._was_available or self._is_closed:
                return
            self._was_available = not fault
            self._on_change(f"{self._address} is {f'not available: {fault}' if fault else 'available again'}")

    def _check(self) -> float | None:
        """Run by the background thread: read the topology and check every node."""
        if self._fault:
            # Also before the first check, which may pass at once although the calls have failed.
            self._checks.pause(self._check_seconds)
            self._check_seconds = min(2 * self._check_seconds, _MOST_CHECK_SECONDS)
        try:
            self._topology.refresh(self._dialer, Deadline.after(CALL_SECONDS * len(self._address.nodes)))
            fault = next(filter(None, map(self._check_node, sorted(self._topology.nodes))), "")
        except RedisUnavailable as error:
            fault = str(error)
        with self._lock:
            self._fault = fault
            # Only a call that succeeds proves that calls do: after the next one that fails, it is down again.
            self._failures = min(self._failures, _MOST_FAILURES - 1)
        self._close_idle([node for node in [*self._idle] if fault or node not in self._topology.nodes])
        self._report()
        if not fault:
            # A cluster that is being changed wakes this thread at every reply.
            self._checks.pause(_FIRST_CHECK_SECONDS)
        return 0.0 if fault else None

    def _check_node(self, node: Node) -> str:
        """Why the node cannot be used; empty if it can."""
        try:
            with closing(self._dialer.open(node, Deadline.after(CALL_SECONDS))) as connection:
                replies = connection.exchange([(b"PING",), self._topology.check], Deadline.after(CALL_SECONDS))
                _raise_if_not_now(node, replies)
        except RedisUnavailable as error:
            return str(error)
        match replies[1]:
            case [bytes(role), *_] if role != b"master":
                return f"{node}: it is a replica"
            case bytes(text) if b"cluster_state:ok" not in text:
                return f"{node}: the cluster is down"
        return ""


@dataclass
class _Budget:
    """The time of one call. Used by one thread."""

    deadline: Deadline
    # What connecting has taken.
    connecting: float = 0.0

    @contextmanager
    def for_connects(self) -> Iterator[Deadline]:
        """The deadline for connecting; the time it takes is added to that of the call."""
        started = time.monotonic()
        try:
            yield Deadline.after(CALL_SECONDS - self.connecting)
        finally:
            spent = time.monotonic() - started
            self.connecting += spent
            self.deadline = Deadline(self.deadline + spent)


class _Step(NamedTuple):
    """A command on its way to a node, and the place of its reply."""

    place: int
    command: Command
    node: Node


def _raise_if_not_now(node: Node, replies: Sequence[Reply]) -> None:
    for reply in replies:
        if isinstance(reply, ReplyError) and (reply.code in _NOT_NOW or reply.text.startswith(_CLOSING)):
            raise RedisRefused(f"{node}: {reply.text}")


# The nodes …

SLOTS = 16384
_NUMBERED_KEYS = frozenset([b"EVAL", b"EVALSHA"])


def key_of(command: Command) -> bytes | None:
    """The key that decides where a command goes; None if any node will do."""
    index = 3 if command[0] in _NUMBERED_KEYS else 1
    return command[index] if len(command) > index else None


def slot_of(key: bytes) -> int:
    """CRC16 (XMODEM) of the key, or of what stands in its first braces, if anything does."""
    _, brace, rest = key.partition(b"{")
    tag, closing, _ = rest.partition(b"}")
    return binascii.crc_hqx(tag if brace and closing and tag else key, 0) % SLOTS


@dataclass(frozen=True)
class Redirection:
    """Where a command has to be sent instead; `is_once` if the slot is still being moved there (ASK)."""

    node: Node
    is_once: bool


def redirection(reply: Reply, asked: Node) -> Redirection | None:
    """What a MOVED or ASK reply says; None for any other reply."""
    if not isinstance(reply, ReplyError) or reply.code not in ("MOVED", "ASK"):
        return None
    host, colon, port = reply.text.split()[-1].rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        return None
    # A node that does not know its own address leaves the host out: it is the one that was asked.
    return Redirection(Node(host.strip("[]") or asked.host, int(port)), reply.code == "ASK")


class SingleServer:
    """Called by any thread."""

    # What a server is asked to find out whether it can be used.
    check: Command = (b"ROLE",)

    def __init__(self, address: RedisAddress) -> None:
        # The servers in use; those of a cluster have to be found first.
        self.nodes = frozenset(address.nodes)

    def node_for(self, _command: Command) -> Node:
        [node] = self.nodes
        return node

    def refresh(self, dialer: Dialer, deadline: Deadline) -> None:
        """Find the nodes; raises RedisUnavailable. A single server stays where it is."""


class ClusterMap(SingleServer):
    """Called by any thread; each attribute is replaced as a whole, so no lock is needed."""

    check = (b"CLUSTER", b"INFO")

    def __init__(self, address: RedisAddress) -> None:
        self.nodes = frozenset()
        self._seeds = address.nodes
        self._owners: list[Node | None] = []

    def node_for(self, command: Command) -> Node:
        key = key_of(command)
        node = min(self.nodes) if key is None else self._owners[slot_of(key)]
        if node is None:
            raise RedisRefused("the cluster has no node for a slot")
        return node

    def refresh(self, dialer: Dialer, deadline: Deadline) -> None:
        """Ask one node after the other, each within its share of the time; raises what the last one raises."""
        known = list(dict.fromkeys([*sorted(self.nodes), *self._seeds]))
        while known:
            try:
                self._owners = _read_map(dialer, known.pop(0), Deadline.after(deadline.left / (len(known) + 1)))
                break
            except RedisUnavailable:
                if not known:
                    raise
        self.nodes = frozenset(owner for owner in self._owners if owner is not None)


def _read_map(dialer: Dialer, node: Node, deadline: Deadline) -> list[Node | None]:
    with closing(dialer.open(node, deadline)) as connection:
        [ranges] = connection.exchange([(b"CLUSTER", b"SLOTS")], deadline)
    if not isinstance(ranges, list) or not ranges:
        text = ranges.text if isinstance(ranges, ReplyError) else "it knows no node of a cluster"
        raise RedisRefused(f"{node}: {text}")
    return _owners(ranges, node)


def _owners(ranges: Sequence[Reply], asked: Node) -> list[Node | None]:
    owners: list[Node | None] = [None] * SLOTS
    for each in ranges:
        match each:
            case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                # A node that does not know its own address names none.
                name = host.decode("utf-8", "replace") if isinstance(host, bytes) and host != b"?" else ""
                owners[first : last + 1] = [Node(name or asked.host, port)] * (last + 1 - first)
            case _:
                raise RedisRefused(f"{asked}: its map of the cluster cannot be read")
    return owners
