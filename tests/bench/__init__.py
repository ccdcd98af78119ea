"""The benchmark: one table of figures, which asserts nothing.

The proxy and a quick DeepSeek are processes of their own, and the load comes from this one over real sockets. The
direct column shows the cost of DeepSeek and of the load alone, and that they are not the bottleneck. Other proxies
can be measured beside this one. A measure is a function that yields Rows. Nothing outlives `run`, and every
process gets back its cores.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import date
from pathlib import Path
from typing import TextIO
from unittest import mock

from deepseek_cursor_proxy.server.resource_limits import raise_descriptors
from tests.bench import load_upstream, measures
from tests.bench.measures import QUICK, Scale
from tests.bench.others import OtherCommand
from tests.bench.rounds import Contest, CpuPinning, Target, start_proxy
from tests.bench.table import DIRECT, Row, Table
from tests.support.processes import BenchmarkFailed, running_deepseek


def run(quick: bool = False, commands: Sequence[OtherCommand] = (), out: TextIO | None = None) -> int:
    out = out or sys.stdout
    scale = QUICK if quick else Scale()
    # A proxy needs two for each stream; processes inherit the limit, and macOS has 256.
    raise_descriptors(2 * max(scale.crowds) + 32)
    pinning = CpuPinning()
    try:
        with (
            tempfile.TemporaryDirectory() as place,
            # As for users: some machines forbid it by default.
            mock.patch.dict(os.environ, {"PYTHONDONTWRITEBYTECODE": ""}),
            pinning,
            _contest(commands, scale, pinning, Path(place)) as contest,
            closing(measure(contest, scale, Path(place))) as rows,
        ):
            words = [f"{platform.python_implementation()} {platform.python_version()}", platform.platform()]
            words += [f"{os.cpu_count()} cores", str(pinning), date.today().isoformat(), *["quick"] * quick]
            _print_table(rows, contest, " · ".join(words), out)
    except (BenchmarkFailed, OSError) as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def measure(contest: Contest, scale: Scale, place: Path) -> Generator[Row, None, None]:
    """All rows, each as soon as it is known; closing the generator ends what it started."""
    for rows in (
        *(measures.small_requests, measures.new_connections, measures.first_events, measures.paced_stream),
        *(measures.crowds, measures.throughput, measures.stored_turns, measures.growing_chats),
    ):
        yield from rows(contest, scale)
    yield from measures.startup(contest, scale, place / "started")


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


def _print_table(rows: Iterator[Row], contest: Contest, about: str, out: TextIO) -> None:
    table = Table([other.name for other in contest.others])
    print(about, "", table.heading(), sep="\n", file=out, flush=True)
    for row in rows:
        print(table.line(row), file=out, flush=True)
    print("", *contest.notes, sep="\n", file=out, flush=True)
