"""How far guesses at the tokens of a prompt have been off, by model, as DeepSeek's own counts told.

Kept is the mean of the logarithms of (told / guessed), in which a new one weighs the more the fewer there were, and
never less than a twentieth, so that a change of DeepSeek's is followed. A short prompt, of which half is layout, weighs
less than a long one, and no single prompt counts as more than a factor of two.

A handful of rows in the store's file, written minutes apart and when the proxy stops: what a crash loses is learned
again within a few requests. Like all of the store, this never fails an answer.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard

_log = logging.getLogger(__name__)

# From here on the layout and what is guessed about it no longer matter.
_TOKENS_OF_FULL_WEIGHT = 4000
_LEAST_SHARE = 0.05
_FARTHEST = math.log(2)
# A difference below one in a hundred is not worth a write, and none is made sooner than this after the last.
_WORTH_A_WRITE = 0.01
_SECONDS_BETWEEN_WRITES = 300.0
# DeepSeek has a few; what else a base URL may lead to must not fill the file.
_MOST_MODELS = 64


@dataclass(frozen=True)
class _Known:
    """The mean, how many it is made of (as if there had been one that was right before all), and what the file has."""

    mean: float = 0.0
    count: float = 1.0
    written: float = 0.0
    written_at: float = float("-inf")


class TokenRatios:
    """Called by handler threads and by whoever learns. The lock protects `_known`, which is read from the file once."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Known] | None = None
        self._faults = FaultGuard(_log, "token ratios")

    def ratio(self, model: str) -> float:
        """What a guess has to be multiplied by; 1 for a model that nothing is known about."""
        return math.exp(self._all().get(model, _Known()).mean)

    def learn(self, model: str, estimated: float, prompt_tokens: int) -> None:
        """A prompt that was guessed at had so many tokens. May write to the file: not for the path of a request."""
        if estimated <= 0 or prompt_tokens <= 0:
            return
        told = max(-_FARTHEST, min(_FARTHEST, math.log(prompt_tokens / estimated)))
        weight = min(1.0, estimated / _TOKENS_OF_FULL_WEIGHT)
        known = self._all()
        with self._lock:
            if model not in known and len(known) >= _MOST_MODELS:
                return
            before = known.get(model, _Known())
            share = weight * max(_LEAST_SHARE, 1 / (before.count + 1))
            mean = before.mean + share * (told - before.mean)
            known[model] = _Known(mean, before.count + weight, before.written, before.written_at)
        if self._clock() - before.written_at >= _SECONDS_BETWEEN_WRITES:
            self._write(model)

    def close(self) -> None:
        """Write what is not written yet; the database is its owner's to close."""
        for model in list(self._known or ()):
            self._write(model)

    def _all(self) -> dict[str, _Known]:
        if self._known is None:
            found = self._read()
            with self._lock:
                # Whoever was faster may have learned something since.
                self._known = self._known if self._known is not None else found
        return self._known

    # On disk …

    def _read(self) -> dict[str, _Known]:
        with self._faults.guard("look up"), self._database.reader() as connection:
            rows = connection.execute("SELECT model, mean, count FROM token_ratios LIMIT ?", (_MOST_MODELS,)).fetchall()
            return {model: _Known(mean, count, mean) for model, mean, count in rows if abs(mean) <= _FARTHEST}
        return {}

    def _write(self, model: str) -> None:
        with self._lock:
            assert self._known is not None
            known = self._known[model]
            if abs(known.mean - known.written) < _WORTH_A_WRITE:
                return
            # Told before it is true: a file that cannot be written is not tried with every prompt.
            self._known[model] = _Known(known.mean, known.count, known.mean, self._clock())
        with self._faults.guard("record"), self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO token_ratios (model, mean, count) VALUES (?, ?, ?) "
                "ON CONFLICT (model) DO UPDATE SET mean = excluded.mean, count = excluded.count",
                (model, known.mean, known.count),
            )
