"""The open client connections: each is run by a worker or waits in the event loop, and all are stopped in stages.

A connection that is idle, whose request waits, or whose client does not read, is *parked*: the loop waits for it, and
no thread does. A worker runs it when there is something to do. Only a stream or a body that goes on without blocking is
resumed by the loop itself, because handing a chunk to another thread takes longer than sending it. While few workers
are busy, one waits a moment for its connection before it parks it: the next request of a busy client comes by then.
"""

import socket
import threading
from collections.abc import Callable
from functools import partial

from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull, WaitHandle
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.server.client_connection import ClientConnection, Pause, StopStage, Wait
from deepseek_cursor_proxy.server.event_loop import READ, WRITE, EventLoop
from deepseek_cursor_proxy.server.workers import Workers

# How long a worker waits for a connection itself, while few are busy, …
_LINGER_SECONDS = 0.01
# … if the next step is a worker's in any case; to park the connection and to hand it back take 5 % of a small request.
_LONG_LINGER_SECONDS = 1.0
# … and that also while many are busy: a worker could run few requests in that time.
_SHORT_LINGER_SECONDS = 0.002
# The stage that ends a wait for the client; a wait of the app or of its stream ends with END_RESPONSES.
_ENDED_BY = {Wait.READABLE: StopStage.FINISH_RESPONSES, Wait.WRITABLE: StopStage.ABORT}


class Connections:
    """Called by the loop's thread; `_run` and `_forget` also by workers, `len` and `wait_until_empty` by any thread."""

    def __init__(self, loop: EventLoop, name: str, reject: Callable[[socket.socket], None]) -> None:
        """`reject` gets a client whose request no thread is left for."""
        self._loop = loop
        self._workers = Workers(self._run, self._refuse, name)
        loop.add_timed(self._workers)
        self._reject = reject
        # Protects `_open`; notified when a connection ends.
        self._changed = threading.Condition()
        self._open: set[ClientConnection] = set()
        self.parked: set[_ParkedConnection] = set()
        self._stage = StopStage.SERVING

    def __len__(self) -> int:
        return len(self._open)

    def wait_until_empty(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._open, seconds)

    def add(self, connection: ClientConnection) -> None:
        """Serve a client that was accepted."""
        with self._changed:
            self._open.add(connection)
        connection.resume()
        self.go_on(connection)

    def go_on(self, connection: ClientConnection) -> None:
        """Park the connection, leave it to a worker or end it, as its `pause` says."""
        pause = connection.pause
        if pause is None:
            self._forget(connection)
        elif pause is BLOCKING:
            self.leave_to_worker(connection)
        elif self._stage >= (_ENDED_BY[pause] if isinstance(pause, Wait) else StopStage.END_RESPONSES):
            connection.interrupt()
            self.leave_to_worker(connection)
        else:
            parked = _ParkedConnection(self, self._loop, connection)
            self.parked.add(parked)
            self._loop.add_timed(parked)
            try:
                parked.watch()
            except OSError:
                connection.interrupt(Overloaded("Too many connections at once. Try again in a moment."))
                parked.leave_to_worker()

    def leave_to_worker(self, connection: ClientConnection) -> None:
        if self._workers.submit(connection):
            self._loop.note_due(self._workers.until)
        else:
            self._refuse(connection)

    def _refuse(self, connection: ClientConnection) -> None:
        """No thread is left for this connection."""
        if connection.pause is Wait.READABLE:
            self._forget(connection, is_closed=True)
            self._reject(connection.sock)
        else:
            # Run it here: a started response must finish, even if that blocks the loop.
            self._run(connection)

    def stop(self, stage: StopStage, seconds: float) -> None:
        """Bring all connections to this stage; run the loop until all have ended, or that time is over.

        Called by one thread after the loop was stopped.
        """
        self._stage = stage
        with self._changed:
            connections = list(self._open)
        for connection in connections:
            connection.stop(stage)
        for parked in list(self.parked):
            parked.unpark()
            self.go_on(parked.connection)
        self._loop.run_until(lambda: not self._open, Deadline.after(seconds))

    def close(self) -> None:
        """After the last stage."""
        self._workers.close()
        self._loop.close()

    # By workers …

    def _run(self, connection: ClientConnection) -> None:
        if not self._workers.has_queue:
            self._loop.flush()
        while (pause := connection.resume()) is not None:
            if pause is BLOCKING:
                continue
            if self._stage is StopStage.ABORT:
                # The loop may be closed already.
                connection.interrupt()
            elif not self._linger(connection, pause):
                self._loop.post_later(partial(self.go_on, connection))
                # While requests wait for a worker, the loop need not look for more: parked in batches, a request takes
                # 5 % less. The worker that takes the last one wakes the loop; so the order of these two lines matters.
                if pause is not Wait.READABLE or not self._workers.has_queue:
                    self._loop.flush()
                return
        self._forget(connection)

    def _linger(self, connection: ClientConnection, pause: Pause) -> bool:
        """Wait a moment; whether the connection can go on then."""
        are_few_busy = self._workers.are_few_busy
        if isinstance(pause, Lull) and pause.then_blocks:
            return connection.wait(_LONG_LINGER_SECONDS if are_few_busy else _SHORT_LINGER_SECONDS)
        return are_few_busy and connection.wait(_LINGER_SECONDS)

    def _forget(self, connection: ClientConnection, *, is_closed: bool = False) -> None:
        """Close a connection that has ended, and remove it from the open ones."""
        if not is_closed:
            connection.close()
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()
        if self._stage is not StopStage.SERVING:
            # Wakes `stop`, which waits for the last connection.
            self._loop.post(lambda: None)


class _ParkedConnection:
    """A connection while the loop waits for it. Used by the loop's thread."""

    __slots__ = ("_client", "_connections", "_handle", "_loop", "_source", "connection")

    def __init__(self, connections: Connections, loop: EventLoop, connection: ClientConnection) -> None:
        self._connections = connections
        self._loop = loop
        self.connection = connection
        self._handle: WaitHandle | None = connection.handle
        # The descriptors that are watched; None for one that is not.
        self._client: int | None = None
        self._source: int | None = None

    def watch(self) -> None:
        """Raises OSError when the system can watch no more descriptors."""
        if not self._loop.has_space:
            raise OSError
        connection, source = self.connection, self._handle.source if self._handle is not None else None
        events = WRITE if connection.pause is Wait.WRITABLE else 0
        # Also to see that a client leaves.
        events |= READ if connection.can_receive else 0
        # When the app reads a body, its source is the client.
        if events and source is not connection:
            self._loop.selector.register(connection.fileno(), events, self._on_client)
            self._client = connection.fileno()
        if source is not None:
            awaited = WRITE if isinstance(connection.pause, Lull) and connection.pause.for_writing else READ
            self._loop.selector.register(source.fileno(), awaited, self._on_source)
            self._source = source.fileno()

    def _unwatch(self) -> None:
        for fileno in (self._client, self._source):
            if fileno is not None:
                self._loop.selector.unregister(fileno)
        self._client = self._source = None

    def unpark(self) -> None:
        self._unwatch()
        self._connections.parked.discard(self)
        self._loop.timed.discard(self)

    @property
    def until(self) -> float:
        return self._handle.until if self._handle is not None else self.connection.deadline

    def on_due(self) -> None:
        self._resume()

    def _on_client(self, events: int) -> None:
        if self._client is None:
            # Unparked by an earlier event of the same poll.
            return
        if self.connection.pause is Wait.READABLE or events & WRITE:
            self.leave_to_worker()
        elif not self.connection.receive_early():
            self.connection.interrupt()
            self.leave_to_worker()
        elif not self.connection.can_receive:
            self._unwatch()
            self.watch()

    def _on_source(self, events: int) -> None:
        if self._source is not None:
            self._resume()

    def _resume(self) -> None:
        """Go on after the wait, on the loop's thread if the next step does not block."""
        pause = self.connection.pause
        if not isinstance(pause, Lull) or pause.then_blocks:
            self.leave_to_worker()
        elif self.connection.resume() is pause:
            self._loop.note_due(self.until)
        else:
            self.unpark()
            self._connections.go_on(self.connection)

    def leave_to_worker(self) -> None:
        self.unpark()
        self._connections.leave_to_worker(self.connection)
