"""The benchmark: one table of figures, which asserts nothing.

The proxies and a quick DeepSeek are processes of their own, and the load comes from this one over real sockets. The
direct way shows what DeepSeek and the load alone take, and that they are not the bottleneck. A measure is a function
that yields Rows. Every measure has proxies that were started for it, so that no row depends on those before it.
Nothing outlives `run`, and every process gets back its cores.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from datetime import date
from functools import partial
from pathlib import Path
from typing import TextIO

from deepseek_cursor_proxy.server.resource_limits import raise_descriptors
from tests.bench import load_upstream, measures
from tests.bench.measures import QUICK, Scale
from tests.bench.proxies import THIS_PROXY, ProxyCommand
from tests.bench.rounds import Contest, CpuPinning, Target
from tests.bench.table import DIRECT, Row, Table
from tests.support.processes import BenchmarkFailed, running_deepseek


def run(quick: bool = False, commands: Sequence[ProxyCommand] = (), out: TextIO | None = None) -> int:
    out = out or sys.stdout
    scale = QUICK if quick else Scale()
    # A proxy needs two for each stream; processes inherit the limit, and macOS has 256.
    raise_descriptors(2 * max(streams for streams, _ in scale.streams) + 32)
    try:
        with (
            tempfile.TemporaryDirectory() as place,
            CpuPinning() as pinning,
            running_deepseek(Path(place) / "deepseek", load_upstream.__name__) as upstream,
        ):
            direct = Target(DIRECT, upstream.url, (upstream,))
            contest = Contest(direct, (THIS_PROXY, *commands), Path(place), pinning, scale.patience)
            words = [f"{platform.python_implementation()} {platform.python_version()}", platform.platform()]
            words += [f"{os.cpu_count()} cores", str(pinning), date.today().isoformat(), *["quick"] * quick]
            with closing(measure(contest, scale)) as rows:
                _print_table(rows, contest, " · ".join(words), out)
    except (BenchmarkFailed, OSError) as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def measure(contest: Contest, scale: Scale) -> Generator[Row, None, None]:
    """All rows, each as soon as it is known; closing the generator ends what it started."""
    for rows in (
        *(measures.small_requests, measures.new_connections, measures.first_events, measures.long_streams),
        *(partial(measures.paced_streams, streams=streams, rate=rate) for streams, rate in scale.streams),
        *(measures.throughput, measures.stored_turns, measures.growing_chats),
    ):
        with contest.running():
            contest.run_rounds("a first request", 1, contest.proxies, measures.load_lazy_code)
            yield from rows(contest, scale)
    yield from measures.startup(contest, scale)


def _print_table(rows: Iterator[Row], contest: Contest, about: str, out: TextIO) -> None:
    table = Table([command.name for command in contest.commands[1:]])
    print(about, "", table.heading(), sep="\n", file=out, flush=True)
    for row in rows:
        print(table.line(row), file=out, flush=True)
    print("", *contest.notes, sep="\n", file=out, flush=True)
