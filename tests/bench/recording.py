"""Measures of what a session costs: CPU of recorded chats against others, bytes on disk, and an export."""

import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.features.sessions import export
from deepseek_cursor_proxy.features.sessions.store import SessionStore
from deepseek_cursor_proxy.features.sessions.trajectory import RecordedTurn, SessionOptions, TurnOfSession, new_session
from tests.bench.load_clients import Client, post
from tests.bench.rounds import Contest, Target
from tests.bench.scale import Scale
from tests.bench.table import OURS, Figure, Row

try:
    import tracemalloc
except ImportError:
    # PyPy does not count its memory.
    tracemalloc = None  # type: ignore[assignment]

_TURNS = 30
# What a short answer of an agent has.
_CHUNKS = 200
_WORDS = "of the words that a chat has " * 20
# As long as what agents read.
_RESULT = "    return [line for line in lines if not line.startswith('#')]\n" * 30


def recorded_costs(contest: Contest, scale: Scale, home: Path) -> Iterator[Row]:
    with contest.proxy(home) as proxy, closing(Client(proxy.url)) as client:
        root = proxy.url.removesuffix("/v1")
        session = client.fetch(post(root, b"{}", "/sessions/create"))["base_url"]
        numbers = itertools.count()
        for command, measure in (
            ("bench:plain", f"recorded chat of {_TURNS} turns, against not: CPU per request"),
            (f"bench:stream {_CHUNKS}", f"  with answers of {_CHUNKS} chunks"),
        ):
            plain: list[float] = []
            recorded: list[float] = []
            for _ in range(scale.recorded_chats):
                for base, spent in ((proxy.url, plain), (session, recorded)):
                    spent += _cpu_of_chat(proxy, client, base, f"Chat {next(numbers)}. {_RESULT} {command}")
            ratio = Figure.single(sum(recorded) / sum(plain)) if plain and sum(plain) else None
            yield Row(measure, "", {OURS: ratio})
    yield from _export_rows(scale.exported_nodes)


def _cpu_of_chat(proxy: Target, client: Client, base: str, question: str) -> list[float]:
    """The CPU seconds of a whole chat; nothing where the system does not tell."""
    before = proxy.cpu_seconds()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are brief. " * 20}]
    for _ in range(_TURNS):
        messages.append({"role": "user", "content": question})
        is_stream = "bench:stream" in question
        request = post(
            base, json.dumps({"model": "deepseek-v4-pro", "stream": is_stream, "messages": messages}).encode()
        )
        text = client.read_stream(request) if is_stream else client.fetch(request)["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
    proxy.settle()
    after = proxy.cpu_seconds()
    return [after - before] if before is not None and after is not None else []


def _export_rows(count: int) -> Iterator[Row]:
    """The size of that many nodes on disk, and the memory of their export."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.sqlite3"
        with closing(SessionStore(path)) as store:
            written = _fill(store, count)
            (session,) = store.list(None)
            if tracemalloc:
                tracemalloc.start()
            started = time.perf_counter()
            lines = sum(1 for _ in export.lines(store.nodes(session.uuid), "openai", export.Filter()))
            seconds = time.perf_counter() - started
            memory = Figure.single(tracemalloc.get_traced_memory()[1] / 1e6) if tracemalloc else None
            if tracemalloc:
                tracemalloc.stop()
        assert lines == count
        size = path.stat().st_size
    yield Row(f"{count:,} trajectories: bytes on disk, against their text", "", {OURS: Figure.single(size / written)})
    yield Row("  memory of their export", "MB", {OURS: memory})
    yield Row("  per second", "nodes/s", {OURS: Figure.single(count / seconds)})


def _fill(store: SessionStore, count: int) -> int:
    """Record chats of one turn; the bytes of their texts."""
    session, written = store.insert(b"bench", new_session(SessionOptions(), "deepseek-v4-pro", time.time())).uuid, 0
    for number in range(count):
        texts = [
            f"{word} {number} {'of the words that a chat has ' * 20}" for word in ("Question", "Thought", "Answer")
        ]
        written += sum(map(len, texts))
        question, answer = Message("user", texts[0]), Message("assistant", texts[2], texts[1])
        store.record([TurnOfSession(b"bench", session, RecordedTurn((question,), (), answer, {}))])
    return written
