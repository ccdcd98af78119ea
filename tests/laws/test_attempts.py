"""The law of calls: for any sequence of failures, a request makes the calls and pauses of a short model.

The model says nothing of how the code is built: it is the rules of `exchange/failover.py` and of the page on several
upstreams, written once more as one plain function.
"""

import random
import unittest
from collections.abc import Iterator
from dataclasses import fields, replace

from tests.support.laws import check_law
from tests.support.scripted_upstreams import ANSWERED, CLIENT_KEY, STREAMS, Call, Case, Outcome, generate, play
from tests.support.width import width

BUSY = {"429": 0, "429 after 1": 1, "429 after 3": 3, "429 after 100": 100}
TEMPORARY = {*BUSY, "500", "502", "503", "504", "dropped", "cut", "cut after heartbeat"}
REFUSED_REASONING = {"400 reasoning", *(name for name in STREAMS if name.startswith("reasoning refused"))}
# What a request with a search may be refused for by an upstream of unknown kind.
NO_SEARCH = {
    "400", "400 unknown model", "400 tools", "422", "500", "502", "529", "failed", "no stream", "still refused",
}  # fmt: skip
# What the client has of an answer that fails.
HEARTBEATS = {"cut after heartbeat", "silent after heartbeat", "reasoning refused after heartbeat"}
DELTAS = {"cut after role", "ended", "reasoning refused after role", "cut after text", "reasoning refused after text"}
CONTENT = {"cut after text", "reasoning refused after text"}
# Refusals that another upstream would repeat.
FINAL = {"400", "400 too long", "400 tools", "422"}
TIMEOUTS = {"timeout", "connect timeout", "silent", "silent after heartbeat"}
HELD = (502, "held_key_refused")
FIRST_KEY = "key-u0-000000"


def expect(case: Case) -> Outcome:
    """The calls and pauses of a request, and the error it ends with."""
    outcome, time, has_tables = Outcome(), _Time(case.budget), bool(case.tables)
    faults = [name if case.stream else _plain(name) for name in case.faults]
    keys = _Keys(case, time)
    untried, waiting, failed = keys.upstreams, [], set()
    has_heartbeats = has_deltas = False
    name = untried.pop(0)
    key, is_resent_transcript, has_search = keys.take(name), False, case.has_search
    while True:
        fault = faults.pop(0) if faults else ANSWERED
        in_answer = fault in STREAMS
        if fault != "queue full":
            form = " ".join(["transcript"] * is_resent_transcript + ["search"] * has_search)
            outcome.calls.append(Call(name, key, form))
        if fault == ANSWERED:
            outcome.pauses = time.pauses
            return outcome
        has_heartbeats, has_deltas = has_heartbeats or fault in HEARTBEATS, has_deltas or fault in DELTAS
        # What the same upstream is asked …
        if fault in REFUSED_REASONING and not is_resent_transcript and fault not in CONTENT:
            is_resent_transcript = True
            continue
        fault = "still refused" if fault in REFUSED_REASONING else fault
        if in_answer and (has_deltas or (has_heartbeats and not has_tables)):
            return _end(outcome, time, _error(fault))
        if fault in TEMPORARY and not has_tables and time.pause(BUSY.get(fault, 0)):
            continue
        if has_search and _is_about_search(case, fault, in_answer=in_answer):
            has_search = False
            continue
        # … and another.
        is_owners = key != CLIENT_KEY
        if not has_tables or fault in FINAL or (fault in ("401", "403") and not is_owners):
            is_held = fault == "401" and case.is_held and not is_owners
            return _end(outcome, time, HELD if is_held else _error(fault))
        failed.add(name)
        if is_owners and (fault in BUSY or fault in ("401", "402")):
            keys.set_aside(key, min(BUSY[fault] or 5, 60) if fault in BUSY else 600)
            if keys.has_ready(name):
                untried.insert(0, name)
        if fault in TEMPORARY:
            waiting.append((name, BUSY.get(fault, 0)))
        if not untried and waiting and time.pause(min(seconds for _, seconds in waiting)):
            # That which may recover first, even if it has one busy key and one that is refused.
            waiting.sort(key=lambda each: each[1])
            untried = [*dict(each for each in waiting if each[1] <= time.pauses[-1])]
            waiting = [each for each in waiting if each[1] > time.pauses[-1]]
        if not untried:
            is_passing = fault in TEMPORARY | TIMEOUTS or in_answer or fault in ("529", "failed", "no stream")
            if len(failed) > 1 and not is_passing and fault != "still refused":
                return _end(outcome, time, (502, "upstream_error"))
            return _end(outcome, time, HELD if fault == "401" else _error(fault))
        name = untried.pop(0)
        key, is_resent_transcript, has_search = keys.take(name), False, case.has_search


def _end(outcome: Outcome, time: "_Time", error: tuple[int, str]) -> Outcome:
    outcome.pauses, outcome.error = time.pauses, error
    return outcome


def _error(fault: str) -> tuple[int, str]:
    if fault in TIMEOUTS:
        return 504, "upstream_timeout"
    if fault in ("queue full", "still refused"):
        return (429, "rate_limit_exceeded") if fault == "queue full" else (502, "reasoning_refused")
    return int(fault[:3]) if fault[:3].isdigit() else 502, "upstream_error"


def _is_about_search(case: Case, fault: str, *, in_answer: bool) -> bool:
    if in_answer:
        return fault == "tools refused" and case.is_unknown and not case.tables
    return fault == "404" or fault in (NO_SEARCH if case.is_unknown else {"400 tools"})


def _plain(name: str) -> str:
    """The same fault of an answer that is not streamed."""
    if name in ("cut after heartbeat", "cut after role", "cut after text"):
        return "cut"
    if name == "silent after heartbeat":
        return "silent"
    is_unreadable = name in STREAMS or name == "no stream"
    return "broken" if is_unreadable and name not in ("cut", "silent") else name


class _Time:
    """The pauses of a request, each twice as long as the last, within its budget."""

    def __init__(self, budget: float) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self._end = self.now + budget

    def pause(self, retry_after: float) -> bool:
        seconds = max(min(0.5 * 2 ** len(self.pauses), 8) * 0.9, retry_after)
        if self.now + seconds > self._end:
            return False
        self.now += seconds
        self.pauses.append(round(seconds, 3))
        return True


class _Keys:
    """The owner's keys of each upstream: a chat keeps its key, others take the one that was used longest ago."""

    def __init__(self, case: Case, time: _Time) -> None:
        self._time = time
        self._own = FIRST_KEY if case.is_home else ""
        self._keys = {f"u{at}": [f"key-u{at}-{n:06}" for n in range(count)] for at, count in enumerate(case.tables)}
        self._usable_from: dict[str, float] = {}
        self._last_use = {FIRST_KEY: 1} if case.is_home else {}

    @property
    def upstreams(self) -> list[str]:
        return [*self._keys] or ["DeepSeek"]

    def take(self, name: str) -> str:
        keys = self._keys.get(name)
        if not keys:
            return CLIENT_KEY
        ready = [key for key in keys if self._is_ready(key)]
        found = [key for key in ready if key == self._own] or ready or keys
        key = min(found, key=lambda key: (self._wait(key), self._last_use.get(key, 0)))
        self._last_use[key] = max(self._last_use.values(), default=0) + 1
        return key

    def set_aside(self, key: str, seconds: float) -> None:
        self._usable_from[key] = self._time.now + seconds

    def has_ready(self, name: str) -> bool:
        return any(self._is_ready(key) for key in self._keys[name])

    def _is_ready(self, key: str) -> bool:
        return self._wait(key) <= 0

    def _wait(self, key: str) -> float:
        return max(self._usable_from.get(key, 0.0) - self._time.now, 0.0)


def simpler(case: Case) -> Iterator[Case]:
    """The case with a failure less, an upstream less, or another of its parts as usual."""
    for name in ("faults", "tables"):
        value = getattr(case, name)
        yield from (replace(case, **{name: value[:at] + value[at + 1 :]}) for at in range(len(value)))
    usual = {each.name: each.default for each in fields(case) if each.name not in ("faults", "tables")}
    yield from (replace(case, **{name: value}) for name, value in usual.items() if getattr(case, name) != value)


class TestCalls(unittest.TestCase):
    def test_calls_pauses_and_the_final_error_are_those_of_the_model(self) -> None:
        cases = (generate(random.Random(seed)) for seed in range(width(60, 1000, 20000)))
        check_law(cases, lambda case: self.assertEqual(expect(case).summary, play(case).summary), simpler)
