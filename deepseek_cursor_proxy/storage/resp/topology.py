"""Which server a command goes to: always the same one, or the master that Sentinels name. `cluster` has the third kind.

The first Sentinel that answers decides, and is asked first the next time. The server it names may have been demoted a
moment ago, so that the engine asks the server for its ROLE before it uses it again.
"""

import functools
from contextlib import closing

from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.storage.resp.address import EngineAddress, Node
from deepseek_cursor_proxy.storage.resp.connection import Dialer, first_answer
from deepseek_cursor_proxy.storage.resp.protocol import Command, EngineRefused


class Topology:
    """A single server. Called by any thread; each attribute is replaced as a whole, so no lock is needed."""

    # What a server is asked to find out whether it can be used.
    check: Command = (b"ROLE",)

    def __init__(self, address: EngineAddress) -> None:
        # The servers that the engine needs; none before the first refresh, if they have to be found.
        self.nodes = frozenset(address.nodes)

    def node_for(self, _command: Command) -> Node:
        [node] = self.nodes
        return node

    def refresh(self, dialer: Dialer, deadline: Deadline) -> None:
        """Find the nodes; raises EngineDown. A single server stays where it is."""


class SentinelMaster(Topology):
    def __init__(self, address: EngineAddress) -> None:
        self.nodes = frozenset()
        self._name = address.sentinel_name
        self._sentinels = address.nodes

    def refresh(self, dialer: Dialer, deadline: Deadline) -> None:
        sentinel, master = first_answer(self._sentinels, deadline, functools.partial(self._ask, dialer))
        self.nodes = frozenset([master])
        self._sentinels = (sentinel, *(each for each in self._sentinels if each != sentinel))

    def _ask(self, dialer: Dialer, sentinel: Node, deadline: Deadline) -> Node:
        question = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._name.encode())
        with closing(dialer.open_sentinel(sentinel, deadline)) as connection:
            [reply] = connection.exchange([question], deadline)
        match reply:
            case [bytes(host), bytes(port)] if port.isdigit():
                return Node(host.decode("utf-8", "replace"), int(port))
        raise EngineRefused(f"{sentinel}: this Sentinel knows no master {self._name}")
