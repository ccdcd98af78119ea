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
    # Chats of so many tool turns: requests measured at each length, chats, and starts with a chat seen before.
    turns: tuple[int, ...] = (10, 50, 200, 800)
    turns_measured: int = 10
    chats: int = 1
    first_seen: int = 3
    # Long chats at once, and their turns: none of the requests measured is the hundredth of its chat, which costs more.
    concurrent: int = 16
    concurrent_turns: int = 210
    # Requests of which the calls are counted, and the tool turns of a chat among them.
    counted: int = 50
    # Turns stored, also beside so many rows.
    stored_turn_count: int = 500
    rows: int = 100_000
    # Stored responses in a chain.
    chain_length: int = 1000
    # At a limit of a third as many slots.
    # Chats recorded in a session and not, and trajectories exported.
    recorded_chats: int = 10
    exported_nodes: int = 10_000
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
    requests=200,
    paced_chunks=200,
    paced_rounds=2,
    streams=3,
    crowd_seconds=2.0,
    crowd_rounds=1,
    turns=(10, 50, 200),
    turns_measured=5,
    first_seen=1,
    concurrent_turns=50,
    counted=20,
    stored_turn_count=100,
    rows=20_000,
    chain_length=200,
    recorded_chats=4,
    exported_nodes=1000,
    callers=150,
    starts=3,
    burst_seconds=1.0,
    bursts=2,
    patience=5.0,
)
