"""GET /api/events: the feed that an open dashboard reads, as server-sent events.

    hello      once: version and time
    running    a request in flight: when it begins, and at most every second when it has changed
    ended      the number of a request that is no longer in flight
    request    the row of a request that ended
    stats      what /api/stats has, without the requests in flight, every two seconds

Requests only append to a queue. One thread, which lives as long as a feed is open, gathers what happened within a tenth
of a second, encodes it once for all feeds, and leaves it in their buffers. A reader that is too slow loses the oldest
events, never holds anything up, and finds the present state in `stats` and the next `running`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.admin import requests, stats
from deepseek_cursor_proxy.admin.context import AdminContext
from deepseek_cursor_proxy.admin.state import gauges
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.http1.lull import Lull
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.net.threads import start_thread
from deepseek_cursor_proxy.net.wakeup import Wakeup
from deepseek_cursor_proxy.observers.events import Progress
from deepseek_cursor_proxy.observers.request_log import RequestLog, RequestRecord

_log = logging.getLogger(__name__)

_MOST_FEEDS = 32
# Gathered before anything is encoded: a person sees no difference, and a thousand requests a second cost ten wake-ups.
_GATHER_SECONDS = 0.1
# Proxies in between close a silent connection after some minutes; the page takes silence for a lost connection.
_HEARTBEAT_SECONDS = 15.0
# What is repeated, and how often.
_INTERVALS = {"running": 1.0, "stats": 2.0, "heartbeat": _HEARTBEAT_SECONDS}
# People read no more rows at once; the older of them are left out, and the page loads them when it is scrolled.
_MOST_ROWS = 200
# Of events that a reader has not read yet.
_MOST_BYTES = 512 * 1024
_HEARTBEAT = sse.comment("")


class Feed:
    """The body of one open feed: filled by the thread of Feeds, read by the connection's. The lock protects all."""

    # Never known in advance.
    is_finished = False

    def __init__(self, feeds: "Feeds", first: bytes) -> None:
        self._feeds = feeds
        self._lock = threading.Lock()
        self._buffer: deque[bytes] = deque([first])
        self._size = len(first)
        self._is_over = False
        self._is_notified = False
        self._wakeup = Wakeup()

    def push(self, data: bytes) -> None:
        """Leave this for the reader; without space the oldest goes. Never waits."""
        with self._lock:
            self._buffer.append(data)
            self._size += len(data)
            while self._size > _MOST_BYTES and len(self._buffer) > 1:
                self._size -= len(self._buffer.popleft())
            self._notify()

    def end(self) -> None:
        """Have the reader come to its end."""
        with self._lock:
            self._is_over = True
            self._notify()

    def _notify(self) -> None:
        if not self._is_notified:
            self._is_notified = True
            self._wakeup.notify()

    # As the body of a reply …

    def __iter__(self) -> Iterator[bytes | Lull]:
        lull = Lull(self, then_blocks=False)
        while not self._is_over:
            yield self._take() or lull

    def _take(self) -> bytes:
        with self._lock:
            if self._is_notified:
                self._is_notified = False
                self._wakeup.clear()
            data = b"".join(self._buffer)
            self._buffer.clear()
            self._size = 0
        return data

    def close(self) -> None:
        self._feeds.remove(self)
        with self._lock:
            # From here on nothing is pushed.
            self._is_notified = True
            self._wakeup.close()

    # As what the sender waits for …

    @property
    def until(self) -> float:
        return time.monotonic() + _HEARTBEAT_SECONDS

    @property
    def source(self) -> Wakeup:
        return self._wakeup

    def interrupt(self, error: Exception) -> None:
        """The client left, or the proxy stops."""
        self._is_over = True


class Feeds:
    """All open feeds, and the thread that fills them. Called by the listener's threads; requests call two methods."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        # Protects `_open` and `_thread`.
        self._lock = threading.Lock()
        self._open: tuple[Feed, ...] = ()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        # Appending and popping are atomic; requests do nothing else.
        self._new_numbers: deque[int] = deque(maxlen=_MOST_ROWS)
        self._new_records: deque[RequestRecord] = deque(maxlen=_MOST_ROWS)

    def open(self) -> Feed:
        """A new feed; Overloaded when there are too many, or nothing to make one of."""
        log = self._context.services().request_log
        try:
            feed = Feed(self, _event("hello", {"version": __version__, "now": round(time.time(), 3)}))
        except OSError:
            raise Overloaded("There are no descriptors left for another feed.", retry_after=5) from None
        with self._lock:
            is_open = len(self._open) < _MOST_FEEDS and self._start_thread(log)
            self._open += (feed,) if is_open else ()
        if not is_open:
            feed.close()
            raise Overloaded("Too many dashboards are open.", retry_after=5)
        # Only now, when nothing that ends can be missed.
        if running := gauges(self._context).running:
            feed.push(b"".join([_event("running", requests.running(each)) for each in running]))
        return feed

    def remove(self, feed: Feed) -> None:
        with self._lock:
            self._open = tuple(each for each in self._open if each is not feed)
            if not self._open:
                self._wake.set()

    def end_all(self) -> None:
        """End all feeds that are open: their key has changed."""
        for each in self._open:
            each.end()

    def close(self) -> None:
        """After the listener, which has closed every feed: wait for the thread."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _start_thread(self, log: RequestLog) -> bool:
        """Whether there is a thread; it listens to the requests from here on."""
        if self._thread is None:
            unsubscribe = log.subscribe(self._on_end, self._on_begin)
            self._thread = start_thread(partial(self._run, unsubscribe), "admin-feed")
            if self._thread is None:
                unsubscribe()
        return self._thread is not None

    # On the threads of requests …

    def _on_begin(self, number: int) -> None:
        self._new_numbers.append(number)
        if not self._wake.is_set():
            self._wake.set()

    def _on_end(self, record: RequestRecord) -> None:
        self._new_records.append(record)
        if not self._wake.is_set():
            self._wake.set()

    # On the thread of the feeds …

    def _run(self, unsubscribe: Callable[[], None]) -> None:
        due_at = {"running": 0.0, "stats": 0.0, "heartbeat": time.monotonic() + _INTERVALS["heartbeat"]}
        # What was last said about each request in flight.
        last: dict[int, tuple[str, int]] = {}
        try:
            while self._has_feeds():
                self._wake.wait(max(0.0, min(due_at.values()) - time.monotonic()))
                self._wake.clear()
                time.sleep(_GATHER_SECONDS)
                now = time.monotonic()
                due = [name for name, at in due_at.items() if now >= at]
                due_at |= {name: now + _INTERVALS[name] for name in due}
                self._fill(due, last)
        finally:
            unsubscribe()

    def _fill(self, due: Sequence[str], last: dict[int, tuple[str, int]]) -> None:
        try:
            data = b"".join(self._gather(due, last))
        except Exception as error:
            # A bug costs these events; the page asks for the state again when the feed ends.
            _log.error("unexpected %s in the feed of the dashboard", type(error).__name__)
            self.end_all()
            return
        for feed in self._open if data else ():
            feed.push(data)

    def _has_feeds(self) -> bool:
        with self._lock:
            if not self._open:
                self._thread = None
            return bool(self._open)

    def _gather(self, due: Sequence[str], last: dict[int, tuple[str, int]]) -> Iterator[bytes]:
        log = self._context.services().request_log
        # A request may have ended since: its `running` goes before its `ended`.
        new = [log.find_running(number) for number in _drain(self._new_numbers)]
        yield from _running_events([request for request in new if request is not None], last)
        for record in _drain(self._new_records):
            yield _event("ended", {"number": record.number})
            yield _event("request", requests.row(record))
        if "running" in due:
            in_flight = gauges(self._context).running
            for number in last.keys() - {request.facts.number for request in in_flight}:
                del last[number]
            yield from _running_events(in_flight, last)
        if "stats" in due:
            yield _event("stats", stats.summary(self._context))
        if "heartbeat" in due:
            yield _HEARTBEAT


def _running_events(in_flight: Sequence[Progress], last: dict[int, tuple[str, int]]) -> Iterator[bytes]:
    """The events for requests that are not as they were `last`."""
    for request in in_flight:
        state = (request.phase, request.output_tokens_estimate)
        if last.get(request.facts.number) != state:
            last[request.facts.number] = state
            yield _event("running", requests.running(request))


def _drain(items: deque[Any]) -> Iterator[Any]:
    while items:
        yield items.popleft()


def _event(name: str, value: object) -> bytes:
    return sse.event(encode_json(value), name)
