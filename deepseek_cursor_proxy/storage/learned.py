"""What the proxy learned: token ratios of models, reasoning forms of upstreams, the namespaces of named keys.

All are small tables that are read once and kept in memory. No answer ever fails because of them; a write that fails
waits, or is learned again after a restart.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from deepseek_cursor_proxy.storage.entries import Kind, Row
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.table import Table

# In prompts from this size on the layout, the least certain part of the estimate, does not matter.
_TOKENS_OF_FULL_WEIGHT = 4000
_LEAST_SHARE = 0.05
_FARTHEST = math.log(2)
# Number of full-weight prompts after which the mean hardly changes.
_ENOUGH = 16.0
# Smaller changes of the logarithm are not written once enough is known, and none sooner than this after the last write.
_WORTH_A_WRITE = 0.01
_SECONDS_BETWEEN_WRITES = 300.0
# DeepSeek has a few models; an odd upstream must not fill the file.
_MOST_MODELS = 64
# A user has a few upstreams; the table must not grow with every base URL ever tried.
_MOST_FORMS = 256
# More names than any proxy has.
_MOST_NAMES = 10_000
# One answer may be an accident: of a gateway with several servers, or of a model that writes about tags.
_CONFIRMING_ANSWERS = 2


@dataclass(frozen=True)
class _Ratio:
    """The mean logarithm, its weight (starting as if one estimate had been right), and both as the file has them."""

    mean: float = 0.0
    count: float = 1.0
    written: float = 0.0
    written_count: float = 1.0
    written_at: float = float("-inf")


class TokenRatios(Table[Row]):
    """By model, the ratio of DeepSeek's count of prompt tokens to our estimate.

    The ratio is the exponential of a running mean of log(counted / estimated). A new prompt weighs more the fewer there
    were, and never less than a twentieth, so that the mean follows a change at DeepSeek. A short prompt, half of which
    is layout, weighs less than a long one, and no prompt counts as more than a factor of two. Rows are written minutes
    apart and when the proxy stops; a crash loses what a few requests teach again.

    Called by workers and the counter's thread. The lock protects `_ratios`, read from the file once.
    """

    kind = Kind("token_ratios", "token ratios", ("model",), ("mean", "count"), writes_between_prunings=0)

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(database)
        self._clock = clock
        self._lock = threading.Lock()
        self._ratios: dict[str, _Ratio] | None = None

    def ratio(self, model: str) -> float:
        """The factor for an estimate; 1 for an unknown model."""
        return math.exp(self._all().get(model, _Ratio()).mean)

    def has_learned(self, model: str) -> bool:
        """True if another prompt would hardly change the ratio."""
        return self._all().get(model, _Ratio()).count > _ENOUGH

    def learn(self, model: str, estimated: float, prompt_tokens: int) -> None:
        """Add a prompt that DeepSeek counted. May write to the file, so no request may wait for it."""
        if estimated <= 0 or prompt_tokens <= 0:
            return
        logarithm = max(-_FARTHEST, min(_FARTHEST, math.log(prompt_tokens / estimated)))
        weight = min(1.0, estimated / _TOKENS_OF_FULL_WEIGHT)
        known = self._all()
        with self._lock:
            if model not in known and len(known) >= _MOST_MODELS:
                return
            before = known.get(model, _Ratio())
            share = weight * max(_LEAST_SHARE, 1 / (before.count + 1))
            mean = before.mean + share * (logarithm - before.mean)
            known[model] = replace(before, mean=mean, count=before.count + weight)
        if self._clock() - before.written_at >= _SECONDS_BETWEEN_WRITES:
            self._write(model)

    def close(self) -> None:
        """Write what changed. The owner of the database closes it."""
        for model in list(self._ratios or ()):
            self._write(model)

    def _all(self) -> dict[str, _Ratio]:
        if self._ratios is None:
            rows = self.get_all(_MOST_MODELS)
            found = {model: _Ratio(mean, count, mean, count) for model, mean, count in rows if abs(mean) <= _FARTHEST}
            with self._lock:
                # Another thread may have been first, and may have learned since.
                self._ratios = self._ratios if self._ratios is not None else found
        return self._ratios

    def _write(self, model: str) -> None:
        with self._lock:
            assert self._ratios is not None
            known = self._ratios[model]
            is_learning = known.written_count < min(known.count, _ENOUGH + 1)
            if not is_learning and abs(known.mean - known.written) < _WORTH_A_WRITE:
                return
            # Before the write, so that a file that cannot be written is not tried with every prompt.
            self._ratios[model] = _Ratio(known.mean, known.count, known.mean, known.count, self._clock())
        self.write(Row((model,), (known.mean, known.count)))


class ReasoningForms(Table[Row]):
    """By base URL, the name under which an upstream of unknown kind sends its reasoning.

    A form is confirmed when two answers in a row show it; until then it is used only if the answer that showed it
    leaves no doubt, and never written. A row is written when another form is confirmed.

    Called by workers. The lock protects the dicts; two are read from the file once.
    """

    kind = Kind("reasoning_forms", "reasoning forms", ("base_url",), ("form",), writes_between_prunings=0)

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._lock = threading.Lock()
        # The forms in use.
        self._forms: dict[str, str] | None = None
        self._confirmed: dict[str, str] = {}
        # Forms of the last answers that are not confirmed, and how many showed them.
        self._pending: dict[str, tuple[str, int]] = {}

    def get(self, base_url: str) -> str | None:
        return self._all().get(base_url)

    def is_confirmed(self, base_url: str) -> bool:
        """Whether the form in use is confirmed, and the last answer showed no other."""
        return base_url not in self._pending and base_url in self._confirmed

    def learn(self, base_url: str, form: str, *, is_sure: bool) -> None:
        """Count an answer that showed a form; a sure one is used before it is confirmed."""
        known = self._all()
        with self._lock:
            if base_url not in known and len(known) >= _MOST_FORMS:
                return
            last, count = self._pending.pop(base_url, ("", 0))
            count = count + 1 if last == form else 1
            was_confirmed = self._confirmed.get(base_url) == form
            is_confirmed = was_confirmed or count >= _CONFIRMING_ANSWERS
            if is_confirmed or is_sure:
                known[base_url] = form
            if not is_confirmed:
                self._pending[base_url] = form, count
                return
            self._confirmed[base_url] = form
        if not was_confirmed:
            self.write(Row((base_url,), (form,)))

    def _all(self) -> dict[str, str]:
        if self._forms is None:
            found = dict(self.get_all(_MOST_FORMS))
            with self._lock:
                # Another thread may have been first, and may have learned since.
                if self._forms is None:
                    self._confirmed, self._forms = dict(found), found
        return self._forms


class KeyNamespaces(Table[Row]):
    """By name of a key or group and by base URL, the namespace of the key with which the name was first used.

    So a key that gets a name keeps its reasoning, and a name that gets another key does, too. Called by workers; if two
    threads look a name up, both find the same.
    """

    kind = Kind("key_names", "names of keys", ("name", "base_url"), ("namespace",), writes_between_prunings=0)

    def __init__(self, database: Database, keep_first: Callable[[str, bytes], bytes | None] | None = None) -> None:
        """`keep_first` asks an engine that several proxies share; it returns None if that does not answer."""
        super().__init__(database)
        self._keep_first = keep_first
        self._known: dict[tuple[str, str], bytes] = {}

    def get(self, name: str, base_url: str, own: bytes) -> bytes:
        """The namespace of a name; from now on `own`, if it has none."""
        key = (name, base_url)
        if (known := self._known.get(key)) is not None:
            return known
        # Another process may have added names.
        in_file: dict[tuple[str, str], bytes] = {
            (*found,): namespace for *found, namespace in self.get_all(_MOST_NAMES)
        }
        if key not in in_file:
            written = self.write(Row(key, (own,), keeps_first=True))
            if written is None:
                # The file cannot be written; another process may have another namespace for the name.
                return own
            in_file[key] = written[0]
        if self._keep_first is None:
            self._known.update(in_file)
        elif (first := self._keep_first(f"{name} {base_url}", in_file[key])) is not None:
            if first != in_file[key]:
                self.write(Row(key, (first,)))
            self._known[key] = in_file[key] = first
        return in_file[key]
