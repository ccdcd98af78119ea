"""The command `python -m tests.bench.agents`: chats of coding agents through this proxy and others, and what of them
reaches DeepSeek.

Each client of `agent_clients` plays a chat of 30 turns through each proxy: three questions, with nine tool calls and an
answer each. The DeepSeek behind them is the strict fake of the tests: it refuses a request with tools in which a turn
lacks its reasoning (400), and takes any text for one. It takes what DeepSeek is only assumed to refuse, such as unknown
fields. The model's side is the same for every proxy. Figures:

    answered    turns that the client got, of 30; after an error the client gives up
    reasoning   earlier turns whose own reasoning was in the last request that DeepSeek accepted, of 29
    prefix      how much of each prompt the next one begins with, as the model reads both: the part that DeepSeek bills
                as a cache hit
    CPU         milliseconds of the proxy's processes per answered turn
"""

import argparse
import http.client
import itertools
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from tests.bench.__main__ import parse_others
from tests.bench.agent_clients import CLIENTS, AgentClient, Json, ToolCall, prose
from tests.bench.proxies import THIS_PROXY, CpuPinning, ProxyCommand, Target
from tests.fake_deepseek import Answer, Call, FakeDeepSeek, ReceivedRequest, prompt
from tests.support.processes import BenchmarkFailed, Server

TURNS = 30
_TURNS_PER_QUESTION = 10
_KEY = "sk-bench"
# An answer takes milliseconds; a proxy that retries a refusal may take some seconds.
_PATIENCE_SECONDS = 60.0
# Statuses of a proxy that does not have an API.
_NOT_SPOKEN = (404, 405, 501)
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Model:
    """The model's side of a chat: a tool call, or after nine of them an answer."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.reasonings: list[str] = []
        self._answer = Answer()

    def respond(self, payload: Json) -> Answer:
        return self._answer

    def turn(self, client: AgentClient) -> None:
        number, rng = len(self.reasonings), self._rng
        self.reasonings.append(f"Turn {number}: {prose(rng, 400)}. “Häß” is no word.\n\nSo I go on.")
        if number % _TURNS_PER_QUESTION == _TURNS_PER_QUESTION - 1:
            self._answer = Answer(self.reasonings[-1], f"Done with question {number}. " + prose(rng, 300), piece=24)
            return
        call_id = "call_00_" + "".join(rng.choices(_ALPHABET, k=24))
        arguments = json.dumps({client.argument: f"cat src/module_{number}.py", "reason": "to see"})
        text = f"I look at module {number}." if number % 3 == 0 else None
        self._answer = Answer(self.reasonings[-1], text, (Call(call_id, client.tools[0], arguments),), piece=24)


@dataclass
class ChatResult:
    answered: int = 0
    reasonings: int = 0
    # Of each request but the first, the share of the one before that it begins with.
    prefixes: list[float] = field(default_factory=list)
    cpu_seconds: float | None = None
    error: str = ""
    is_spoken: bool = True

    def __str__(self) -> str:
        if not self.is_spoken:
            return "–"
        prefix = f"{100 * sum(self.prefixes) / len(self.prefixes):.1f} %" if self.prefixes else "–"
        cpu = "–" if self.cpu_seconds is None else f"{1000 * self.cpu_seconds / max(1, self.answered):.1f} ms"
        return f"{self.answered} · {self.reasonings} · {prefix} · {cpu}"


def play(client: AgentClient, target: Target, fake: FakeDeepSeek, model: Model, turns: int = TURNS) -> ChatResult:
    """One chat; it ends early when the client gets no answer."""
    target.settle()
    result, rng, started = ChatResult(), random.Random(client.name), target.cpu_seconds()
    with closing(_Connection(target.url, client)) as connection:
        for number in range(turns):
            if number % _TURNS_PER_QUESTION == 0:
                client.change(number)
                client.ask(f"Question {number}: " + prose(rng, 200))
            model.turn(client)
            try:
                calls = connection.answer()
            except (OSError, ValueError, http.client.HTTPException) as error:
                result.error = str(error) or type(error).__name__
                result.is_spoken = number > 0 or not connection.is_unknown
                break
            result.answered += 1
            for call in calls:
                client.add_result(call, prose(rng, rng.randint(800, 3000)))
    ended = target.cpu_seconds()
    result.cpu_seconds = ended - started if started is not None and ended is not None else None
    _judge(result, fake.seen, model.reasonings)
    return result


class _Connection:
    """The kept-alive connection of a client."""

    def __init__(self, url: str, client: AgentClient) -> None:
        address = urlsplit(url)
        self._client = client
        self._http = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE_SECONDS)
        self.is_unknown = False

    def close(self) -> None:
        self._http.close()

    def answer(self) -> list[ToolCall]:
        """Send the client's next request and have the client read the answer; ValueError for an error."""
        headers = {**self._client.headers, "Authorization": f"Bearer {_KEY}", "Content-Type": "application/json"}
        self._http.request("POST", self._client.path, json.dumps(self._client.body()).encode(), headers)
        response = self._http.getresponse()
        body = response.read()
        if response.status != 200:
            self.is_unknown = response.status in _NOT_SPOKEN
            raise ValueError(f"{response.status} {_shorten(body)}")
        events = [json.loads(data) for data in re.findall(rb"^data: ?(\{.*\})\r?$", body, re.MULTILINE)]
        failed = [event for event in events if event.get("type") in ("error", "response.failed") or event.get("error")]
        if failed:
            raise ValueError(_shorten(json.dumps(failed[0]).encode()))
        return self._client.read(events)


def _shorten(body: bytes) -> str:
    found = re.search(rb'"message"\s*:\s*"((?:[^"\\]|\\.)*)"', body)
    return " ".join((found[1] if found else body).decode(errors="replace").split())[:160]


def _judge(result: ChatResult, seen: Sequence[ReceivedRequest], reasonings: Sequence[str]) -> None:
    payloads = [request.payload for request in seen if request.payload.get("messages")]
    prompts = ["".join(part.text for part in prompt.parts(payload)) for payload in payloads]
    result.prefixes = [_common_share(before, after) for before, after in itertools.pairwise(prompts)]
    accepted = [request.payload for request in seen if request.status == 200]
    if accepted:
        arrived = {message.get("reasoning_content") for message in accepted[-1]["messages"]}
        # The last one belongs to the answer to this request.
        result.reasonings = sum(reasoning in arrived for reasoning in reasonings[:-1])


def _common_share(before: str, after: str) -> float:
    common = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None)
    return (min(len(before), len(after)) if common is None else common) / max(1, len(before))


def run(commands: Sequence[ProxyCommand], out: TextIO, turns: int = TURNS) -> int:
    models: list[Model] = []
    with (
        ExitStack() as stack,
        tempfile.TemporaryDirectory() as place,
        FakeDeepSeek(responder=lambda payload: models[-1].respond(payload)) as fake,
        CpuPinning() as pinning,
    ):
        fake.is_lenient = True
        upstream = Server(fake.url, os.getpid())
        targets = [
            stack.enter_context(command.running(upstream, Path(tempfile.mkdtemp(dir=place)), pinning))
            for command in (THIS_PROXY, *commands)
        ]
        notes: list[str] = []
        print("| | " + " | ".join(target.name for target in targets) + " |", file=out)
        print("|---" * (len(targets) + 1) + "|", file=out, flush=True)
        for kind in CLIENTS:
            cells = []
            for target in targets:
                # The same chats for every proxy, and a short one first, for what is loaded with it.
                for seed, count in ((1, min(3, turns)), (30, turns)):
                    fake.forget()
                    models.append(Model(seed))
                    result = play(kind(random.Random(seed)), target, fake, models[-1], count)
                cells.append(str(result))
                if result.error and result.is_spoken:
                    notes.append(f"{kind.name} by {target.name}, turn {result.answered + 1}: {result.error}")
            print(f"| {kind.name} | " + " | ".join(cells) + " |", file=out, flush=True)
        legend = f"answered of {turns} · reasonings of {turns - 1} · prefix kept · CPU per turn"
        print("", f"A cell: {legend}; – : the proxy does not have the API.", *notes, sep="\n", file=out, flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.agents", description="Play agents' chats through proxies.")
    options = parse_others(parser, arguments)
    try:
        return run(options.command, sys.stdout)
    except (BenchmarkFailed, OSError) as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
