"""Calls per request: how many functions the proxy calls, which no other load on the machine changes.

The proxy runs in this process and is counted by a profile function on its threads; the load is on the main thread,
which has none. Calls that follow an answer, of the log and the ledger, count as well.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from typing import Any

from tests.bench.chats import Chat
from tests.bench.load_clients import Client, post, run_crowd
from tests.bench.requests import question
from tests.bench.rounds import Contest, Target
from tests.bench.scale import Scale
from tests.bench.streams import crowd
from tests.bench.table import OURS, Figure, Row
from tests.support.harness import running_proxy

# Chunks per second of a stream.
_RATE = 200
# For what follows an answer.
_SETTLING_SECONDS = 0.3


class _CallCounter:
    """Counts calls of Python functions and of builtin ones; of two threads at once one may be lost now and then."""

    def __init__(self) -> None:
        self.python = 0
        self.builtin = 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.python += 1
        elif event == "c_call":
            self.builtin += 1

    def rows(self, unit: str, units: int, run: Callable[[], object]) -> Iterator[Row]:
        """Run twice and count the second time; `units` is how many of them that is."""
        for _ in range(2):
            threading.Event().wait(_SETTLING_SECONDS)
            self.python = self.builtin = 0
            run()
        threading.Event().wait(_SETTLING_SECONDS)
        yield Row(f"calls of Python functions per {unit}", "", {OURS: Figure.single(self.python / units)})
        yield Row("  of builtin functions", "", {OURS: Figure.single(self.builtin / units)})


def counted_calls(contest: Contest, scale: Scale) -> Iterator[Row]:
    """Calls per small request, per chunk of a stream, and per request of a long chat."""
    counter, before, count = _CallCounter(), threading.getprofile(), scale.counted
    threading.setprofile(counter)
    try:
        with running_proxy(contest.direct.url) as root, closing(Client(f"{root}/v1")) as client:
            target = Target(OURS, f"{root}/v1")
            small = post(target.url, question("bench:plain"))
            yield from counter.rows("small request", count, lambda: [client.ask(small) for _ in range(count)])
            stream = crowd(target, 1, 4 * count, _RATE)
            yield from counter.rows("chunk of a paced stream", 4 * count, lambda: run_crowd(stream))
            chat = Chat(1)
            while chat.turns < count:
                chat.play(client)
            name = f"request of a chat with {count} tool turns"
            yield from counter.rows(name, 5, lambda: [chat.play(client) for _ in range(5)])
    finally:
        threading.setprofile(before)  # type: ignore[arg-type]
