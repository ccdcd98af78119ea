"""Measures of memory: agents' chats that grow turn by turn, and turns that are stored.

The chat is played for real: each answer comes through the proxy, and goes back as clients send it, with the text that
was shown and without reasoning_content. DeepSeek counts the reasonings that arrive, so a proxy that restores nothing
cannot pass for a quick one.
"""

import random
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any

from deepseek_cursor_proxy.json_codec import encode_json
from tests.bench.load_clients import Client, get, post
from tests.bench.rounds import Contest, Target, added_times, intervals, means, medians
from tests.bench.scale import Scale
from tests.bench.table import Figure, Row, exponent, quantile
from tests.support.processes import BenchmarkFailed


class Chat:
    """An agent's chat: 40 tools of 1 kB, results of 2 to 4 kB."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._code = "".join(f'    value_{n} = look_up("{n:x}")  # {n if n % 200 else "…"}\n' for n in range(1000))
        system = {"role": "system", "content": f"You are agent {seed}.\n" + self._text(4000, 4000)}
        self._messages = [encode_json(system), encode_json({"role": "user", "content": "bench:turn"})]
        self._tools = encode_json([self._tool(f"tool_{n}") for n in range(40)])
        self.turns = 0

    def body(self) -> bytes:
        # Joined from encoded parts: the load must not cost more than the proxy.
        messages = b",".join(self._messages)
        return b'{"model":"deepseek-v4-pro","messages":[%b],"tools":%b}' % (messages, self._tools)

    def play(self, client: Client) -> None:
        """Ask for the next turn and append it to the history, with the tool's result."""
        completion = client.fetch(post(client.url, self.body()))
        try:
            message = completion["choices"][0]["message"]
            calls = [_echo_call(call) for call in message["tool_calls"]]
            answer = {"role": "assistant", "content": message.get("content"), "tool_calls": calls}
        except (LookupError, TypeError) as error:
            raise BenchmarkFailed(f"a turn without its call: {str(completion)[:200]}") from error
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": self._text(2000, 4000)}
        self._messages += encode_json(answer), encode_json(result)
        self.turns += 1

    def _tool(self, name: str) -> dict[str, Any]:
        fields = {field: {"type": "string", "description": self._text(80, 80)} for field in ("path", "first", "last")}
        parameters = {"type": "object", "properties": fields, "required": list(fields)}
        function = {"name": name, "description": self._text(500, 500), "parameters": parameters}
        return {"type": "function", "function": function}

    def _text(self, least: int, most: int) -> str:
        start = self._rng.randrange(len(self._code) - most)
        return self._code[start : start + self._rng.randint(least, most)]


def _echo_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {name: call["function"][name] for name in ("name", "arguments")}
    return {"id": call["id"], "type": "function", "function": function}


# CPU milliseconds by proxy and by the length of the chat.
Growth = dict[str, dict[int, list[float]]]


def growing_chats(contest: Contest, scale: Scale) -> Iterator[Row]:
    """CPU per request of a chat as it grows."""
    grown: Growth = {target.name: {} for target in contest.proxies}
    for seed, target in enumerate(contest.proxies):
        # Every target has a chat of its own, in case they share a store.
        _measure_growth(contest, scale, target, Chat(seed), grown)
    for turns in scale.turns:
        figures = {name: Figure.mean(lengths.get(turns, [])) for name, lengths in grown.items()}
        yield Row(f"chat of {turns} tool turns: CPU per request (mean)", "ms", figures)
    slopes = {name: Figure.single(_slope(lengths)) for name, lengths in grown.items()}
    yield Row(f"  growth exponent, {scale.turns[0]} to {scale.turns[-1]} turns", "", slopes)


def _measure_growth(contest: Contest, scale: Scale, target: Target, chat: Chat, grown: Growth) -> None:
    """Play a chat to its full length and measure it on the way; another proxy may not get there."""
    started = time.monotonic()
    with closing(Client(target.url)) as client:
        try:
            for turns in scale.turns:
                while chat.turns < turns:
                    chat.play(client)
                    if target in contest.others and time.monotonic() - started > scale.chat_patience:
                        raise BenchmarkFailed(f"given up after {scale.chat_patience:g} s at {chat.turns} turns")
                grown[target.name][turns] = _measure_requests(target, client, chat, scale.turns_measured)
                _check(contest, target, chat.turns - 1)
        except (BenchmarkFailed, OSError) as error:
            contest.drop_target(target, "a growing chat", error)


def _measure_requests(target: Target, client: Client, chat: Chat, requests: int) -> list[float]:
    """CPU milliseconds of each of the next requests."""
    clock = [target.cpu_seconds()]
    for _ in range(requests):
        chat.play(client)
        clock.append(target.cpu_seconds())
    return [1000 * seconds for seconds in intervals(clock)]


def _check(contest: Contest, target: Target, turns: int) -> None:
    """Whether the last request reached DeepSeek with the reasoning of all its turns."""
    with closing(Client(contest.direct.url)) as client:
        restored = client.fetch(get(contest.direct.url, "/restored"))
    if restored == turns:
        return
    words = f"only {restored} of {turns} turns reached DeepSeek with their reasoning"
    if target not in contest.others:
        raise BenchmarkFailed(words)
    about = f"{target.name}: cached tool turns: "
    if not any(note.startswith(about) for note in contest.notes):
        contest.notes.append(about + words)


def _slope(lengths: dict[int, list[float]]) -> float | None:
    return exponent({float(length): quantile(samples, 0.5) for length, samples in lengths.items() if samples})


def stored_turns(contest: Contest, scale: Scale) -> Iterator[Row]:
    """How much longer a tool call takes because it is stored."""
    numbers = count()
    tools = [{"type": "function", "function": {"name": "tool_7", "parameters": {"type": "object"}}}]

    def ask(target: Target) -> float:
        messages = [{"role": "user", "content": f"bench:turn for file {next(numbers)}"}]
        body = encode_json({"model": "deepseek-v4-pro", "messages": messages, "tools": tools})
        return 1000 * clients[target.name].ask(post(target.url, body)).whole

    with contest.clients() as clients:
        rounds = contest.run_rounds("storing turns", scale.stored_turns, ask)
    yield Row("storing a tool-call turn: added p50", "ms", medians(added_times(rounds.results)))
    yield Row("  CPU per turn (mean)", "ms", means(rounds.cpu, 1000))
