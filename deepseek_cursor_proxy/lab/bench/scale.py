"""How much of everything the benchmark measures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The whole of it; some minutes for this proxy alone."""

    # Small requests one after another; on new connections and for first events half as many.
    asked: int = 1000
    # One stream at 200 chunks per second: its chunks, and how often.
    paced_chunks: int = 600
    paced: int = 3
    # One stream as fast as it goes.
    chunks: int = 10_000
    streams: int = 7
    # Many streams at 20 chunks per second.
    crowds: tuple[int, ...] = (100, 400)
    crowd_seconds: float = 10.0
    crowded: int = 2
    # Chats of so many tool turns: requests measured at each length, chats, and starts with a chat seen before.
    turns: tuple[int, ...] = (10, 50, 200, 800)
    turns_measured: int = 10
    chats: int = 1
    first_seen: int = 3
    # Turns stored, also beside so many rows.
    stored: int = 500
    rows: int = 100_000
    # Stored responses in a chain.
    chained: int = 1000
    # At a limit of a third as many slots.
    callers: int = 600
    starts: int = 10
    clients: int = 32
    burst_seconds: float = 3.0
    bursts: int = 3
    # Seconds after which a measure makes do with the rounds it has, …
    patience: float = 20.0
    # … and after which another proxy's chat, which may grow slower and slower, is given up.
    chat_patience: float = 20.0


QUICK = Scale(
    asked=200,
    paced_chunks=200,
    paced=2,
    streams=3,
    crowd_seconds=2.0,
    crowded=1,
    turns=(10, 50, 200),
    turns_measured=5,
    chats=1,
    first_seen=1,
    stored=100,
    rows=20_000,
    chained=200,
    callers=150,
    starts=3,
    burst_seconds=1.0,
    bursts=2,
    patience=5.0,
)
