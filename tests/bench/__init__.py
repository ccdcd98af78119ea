"""The benchmark: one table of figures, which asserts nothing.

The proxy and a quick DeepSeek are processes of their own, and the load comes from this one over real sockets. The
direct column shows the cost of DeepSeek and of the load alone, and that they are not the bottleneck. Other proxies
can be measured beside this one. A measure is a function that yields Rows. Nothing outlives `run`, and every
process gets back its cores.
"""

import os
import platform
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO
from unittest import mock

from deepseek_cursor_proxy.server.resource_limits import raise_descriptors
from tests.bench import load_upstream
from tests.bench.chats import growing_chats, stored_turns
from tests.bench.machine import CpuPinning
from tests.bench.others import OtherCommand
from tests.bench.requests import first_events, small_requests, startup, throughput
from tests.bench.rounds import Contest, Target, start_proxy
from tests.bench.scale import QUICK, Scale
from tests.bench.streams import crowds, paced_stream, unpaced_stream
from tests.bench.table import DIRECT, Row, Table
from tests.support.processes import BenchmarkFailed, running_deepseek


def run(quick: bool = False, commands: Sequence[OtherCommand] = (), out: TextIO | None = None) -> int:
    """Measure everything and print it; 0 unless something could not be measured."""
    out = out or sys.stdout
    scale, left_out = _fit_to_limits(QUICK if quick else Scale())
    pinning = CpuPinning()
    try:
        with (
            _exit_on_signals(),
            tempfile.TemporaryDirectory() as place,
            # As for users: some machines forbid it by default.
            mock.patch.dict(os.environ, {"PYTHONDONTWRITEBYTECODE": ""}),
            pinning,
            _contest(commands, scale, pinning, Path(place)) as contest,
            closing(measure(contest, scale, Path(place))) as rows,
        ):
            contest.notes.extend(left_out)
            words = [f"{platform.python_implementation()} {platform.python_version()}", platform.platform()]
            words += [f"{os.cpu_count()} cores", str(pinning), date.today().isoformat(), *["quick"] * quick]
            _print_table(rows, contest, " · ".join(words), out)
    except (BenchmarkFailed, OSError) as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _fit_to_limits(scale: Scale) -> tuple[Scale, list[str]]:
    """The scale without crowds beyond our descriptors, which processes inherit, and a note for each; macOS has 256."""
    room = raise_descriptors(max(map(_descriptors, scale.crowds)))
    fitting = tuple(each for each in scale.crowds if room is None or _descriptors(each) <= room)
    return replace(scale, crowds=fitting), [
        f"{each} streams: not measured, a process may open {room} files here; raise it with `ulimit -n`"
        for each in scale.crowds
        if each not in fitting
    ]


def _descriptors(streams: int) -> int:
    """What a proxy needs for that many streams: a client and a call each, its store and its log."""
    return 2 * streams + 32


def measure(contest: Contest, scale: Scale, place: Path) -> Generator[Row, None, None]:
    """All rows, each as soon as it is known; closing the generator ends what it started."""
    yield from small_requests(contest, scale)
    yield from first_events(contest, scale)
    yield from paced_stream(contest, scale)
    yield from unpaced_stream(contest, scale)
    yield from crowds(contest, scale)
    yield from throughput(contest, scale)
    yield from stored_turns(contest, scale)
    yield from growing_chats(contest, scale)
    yield from startup(contest, scale, place / "started")


@contextmanager
def _contest(commands: Sequence[OtherCommand], scale: Scale, pinning: CpuPinning, place: Path) -> Iterator[Contest]:
    with running_deepseek(place / "deepseek", load_upstream.__name__) as upstream, ExitStack() as stack:
        others = tuple(
            stack.enter_context(command.running(upstream, place / f"other-{number}", pinning))
            for number, command in enumerate(commands)
        )
        ours = stack.enter_context(start_proxy(pinning, upstream, place / "proxy"))
        direct = Target(DIRECT, upstream.url, (upstream,))
        yield Contest(direct, ours, others, scale.patience, pinning, commands=tuple(commands))


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """SIGTERM ends what was started, as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_table(rows: Iterator[Row], contest: Contest, about: str, out: TextIO) -> None:
    table = Table([other.name for other in contest.others])
    print(about, "", table.heading(), sep="\n", file=out, flush=True)
    for row in rows:
        print(table.line(row), file=out, flush=True)
    print("", *contest.notes, sep="\n", file=out, flush=True)
