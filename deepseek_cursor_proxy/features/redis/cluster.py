"""Which node a command goes to: the only server, or in a cluster the node that has the hash slot of its key.

The map of slots is read from any node by CLUSTER SLOTS, again after every MOVED reply.
"""

import binascii
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from deepseek_cursor_proxy.features.redis.address import Node, RedisAddress
from deepseek_cursor_proxy.features.redis.connection import Dialer
from deepseek_cursor_proxy.features.redis.protocol import Command, RedisRefused, RedisUnavailable, Reply, ReplyError
from deepseek_cursor_proxy.net.wait import Deadline

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
