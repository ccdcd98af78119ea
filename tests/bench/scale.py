"""How much of everything the benchmark measures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The whole of it; some minutes for this proxy alone."""

    # Small requests one after another; on new connections and for first events half as many.
    requests: int = 1000
    # One stream at 200 chunks per second: its chunks, and how often.
    paced_chunks: int = 600
    paced_rounds: int = 3
    # One stream as fast as it goes.
    chunks: int = 10_000
    streams: int = 7
    # Many streams at 20 chunks per second.
    crowds: tuple[int, ...] = (100, 400)
    crowd_seconds: float = 10.0
    crowd_rounds: int = 2
    # Chats of so many tool turns: requests measured at each length.
    turns: tuple[int, ...] = (10, 50, 200, 800)
    turns_measured: int = 10
    # Turns stored.
    stored_turns: int = 500
    starts: int = 10
    clients: int = 32
    burst_seconds: float = 3.0
    bursts: int = 3
    # Seconds after which a measure makes do with the rounds it has, …
    patience: float = 20.0
    # … and after which another proxy's chat, which may grow slower and slower, is given up.
    chat_patience: float = 20.0


QUICK = Scale(
    requests=200,
    paced_chunks=200,
    paced_rounds=2,
    streams=3,
    crowd_seconds=2.0,
    crowd_rounds=1,
    turns=(10, 50, 200),
    turns_measured=5,
    stored_turns=100,
    starts=3,
    burst_seconds=1.0,
    bursts=2,
    patience=5.0,
)
