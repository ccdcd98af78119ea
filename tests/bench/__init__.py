"""The benchmark: one table of figures, which asserts nothing.

The proxy and a quick DeepSeek are processes of their own, and the load comes from this one over real sockets. The
direct column shows the cost of DeepSeek and of the load alone, and that they are not the bottleneck. Other running
proxies can be measured beside this one. A measure is a function that yields Rows. Nothing outlives `run`, and every
process gets back its cores.
"""

import json
import os
import platform
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO
from unittest import mock
from urllib.parse import urlsplit

from deepseek_cursor_proxy.server.resource_limits import raise_descriptors
from tests.bench import load_upstream
from tests.bench.apis import other_apis
from tests.bench.calls import counted_calls
from tests.bench.chats import concurrent_chats, growing_chats, stored_turns
from tests.bench.load_clients import Client, post
from tests.bench.machine import CpuPinning, find_listeners
from tests.bench.observation import observed_costs
from tests.bench.others import OtherCommand
from tests.bench.recording import recorded_costs
from tests.bench.requests import first_events, question, small_requests, startup, throughput
from tests.bench.rounds import Contest, Target, start_proxy
from tests.bench.scale import QUICK, Scale
from tests.bench.streams import crowds, paced_stream, unpaced_stream
from tests.bench.table import DIRECT, OURS, Row, Table
from tests.support.processes import BenchmarkFailed, Server, running_deepseek


@dataclass(frozen=True)
class Options:
    """Options of the command line; `others` are names and base URLs."""

    quick: bool = False
    as_json: bool = False
    others: tuple[tuple[str, str], ...] = ()
    upstream_port: int = 0
    commands: tuple[OtherCommand, ...] = ()


def run(options: Options, out: TextIO | None = None) -> int:
    """Measure everything and print it; 0 unless something could not be measured."""
    out = out or sys.stdout
    scale, left_out = _fit_to_limits(QUICK if options.quick else Scale())
    pinning = CpuPinning()
    try:
        with (
            _exit_on_signals(),
            tempfile.TemporaryDirectory() as place,
            # As for users: some machines forbid it by default.
            mock.patch.dict(os.environ, {"PYTHONDONTWRITEBYTECODE": ""}),
            pinning,
            _contest(options, scale, pinning, Path(place)) as contest,
            closing(measure(contest, scale, Path(place))) as rows,
        ):
            contest.notes.extend(left_out)
            tell = _print_json if options.as_json else _print_table
            tell(rows, contest, _describe_run(options, pinning), out)
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
    yield from observed_costs(contest, scale, place)
    yield from recorded_costs(contest, scale, place / "recorded")
    yield from other_apis(contest, scale)
    yield from stored_turns(contest, scale, place)
    yield from growing_chats(contest, scale, place / "store.sqlite3")
    yield from concurrent_chats(contest, scale, place / "concurrent")
    yield from counted_calls(contest, scale)
    yield from startup(contest, scale, place / "started")


@contextmanager
def _contest(options: Options, scale: Scale, pinning: CpuPinning, place: Path) -> Iterator[Contest]:
    flags = ("--reasoning-content-path", str(place / "store.sqlite3"))
    with running_deepseek(place / "deepseek", load_upstream.__name__, options.upstream_port) as upstream:
        others = tuple(_find_target(name, url, upstream, pinning) for name, url in options.others)
        with ExitStack() as stack:
            others += tuple(
                stack.enter_context(command.running(upstream, place / f"other-{number}", pinning))
                for number, command in enumerate(options.commands)
            )
            ours = stack.enter_context(start_proxy(pinning, upstream, place / "proxy", *flags))
            direct = Target(DIRECT, upstream.url, (upstream,))
            yield Contest(direct, ours, others, scale.patience, pinning, commands=options.commands)


def _find_target(name: str, url: str, upstream: Server, pinning: CpuPinning) -> Target:
    """Another proxy, once it has passed on an answer of our DeepSeek."""
    base = url.rstrip("/") if urlsplit(url).path.strip("/") else url.rstrip("/") + "/v1"
    try:
        with closing(Client(base)) as client:
            client.ask(post(base, question("bench:plain")))
    except (BenchmarkFailed, OSError) as error:
        raise BenchmarkFailed(
            f"{name} does not answer at {base}: {error}; start it with {upstream.url} for DeepSeek's address"
        ) from error
    pids = find_listeners(base)
    for pid in pids:
        pinning.pin_measured(pid)
    return Target(name, base, tuple(Server(base, pid) for pid in pids))


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


def _describe_run(options: Options, pinning: CpuPinning) -> dict[str, Any]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "pinning": str(pinning),
        "date": date.today().isoformat(),
        "quick": options.quick,
    }


def _print_table(rows: Iterator[Row], contest: Contest, about: dict[str, Any], out: TextIO) -> None:
    table = Table([other.name for other in contest.others])
    words = [about["python"], about["machine"], f"{about['cores']} cores", about["pinning"], about["date"]]
    print(" · ".join(words + ["quick"] * about["quick"]), "", table.heading(), sep="\n", file=out, flush=True)
    for row in rows:
        print(table.line(row), file=out, flush=True)
    print("", *contest.notes, sep="\n", file=out, flush=True)


def _print_json(rows: Iterator[Row], contest: Contest, about: dict[str, Any], out: TextIO) -> None:
    others = [other.name for other in contest.others]
    about |= {"columns": [DIRECT, OURS, *others], "rows": [row.as_json(others) for row in rows], "notes": contest.notes}
    json.dump(about, out, indent=1, ensure_ascii=False)
    print(file=out, flush=True)
