"""Counting the tokens of a prompt: exactly with a tokenizer that the user supplied, else by a guess that learns.

    count      what a client asks for; never waits for a file, so until the tokenizer is read the guess answers
    learn      what DeepSeek told about a prompt that it has answered; looked into later, by a thread of its own

Guessing at a prompt of 436 kB took 25 ms, starting the thread 0.4. So of most prompts nobody finds out how far
the guess would have been off: the first few of each model are looked into, and after that one a minute.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.memo import Memo
from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.token_ratios import TokenRatios
from deepseek_cursor_proxy.threads import started
from deepseek_cursor_proxy.tokens.estimate import estimated_prompt, prompt_tokens

_log = logging.getLogger(__name__)

# The mean has settled by then.
_PROMPTS_AT_FIRST = 16
_SECONDS_BETWEEN_PROMPTS = 60.0
# By then the answer has ended.
_SECONDS_BEFORE_LOOKING = 0.05
# Clients count the same long chat again and again. Shorter texts are counted as fast as they are found.
_SHORTEST_REMEMBERED = 512
# A digest, a number and their places in a dictionary: some 12,000 texts.
_BYTES_PER_TEXT = 170
_MOST_BYTES_OF_TEXTS = 2 * 1024 * 1024


class Counter:
    """Called by handler threads. The lock protects what is loaded, what was looked into, and the threads."""

    def __init__(self, config: ProxyConfig, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Touches no file."""
        self._path = config.tokenizer
        self._ratios = TokenRatios(database, clock=clock)
        self._clock = clock
        self._lock = threading.Lock()
        # Of the tokenizer: how many tokens a text has.
        self._count_text: Callable[[str], int] | None = None
        self._loading: threading.Thread | None = None
        self._texts: Memo[bytes, int] = Memo(_MOST_BYTES_OF_TEXTS, lambda key, count: _BYTES_PER_TEXT)
        # By model: how many prompts were looked into, and when the last was.
        self._looked: dict[str, tuple[int, float]] = {}
        self._learning: threading.Thread | None = None
        self._closing = threading.Event()

    def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt of this request has, as far as anybody here can tell."""
        if self._path is not None and self._is_loaded(self._path):
            return prompt_tokens(request, self._exactly)
        return round(estimated_prompt(request) * self._ratios.ratio(request.model))

    def learn(self, request: ChatRequest, usage: Mapping[str, Any] | None) -> None:
        """DeepSeek has answered this request, and told this about it. Returns at once."""
        told = usage.get("prompt_tokens") if usage is not None else None
        # With a tokenizer there is nothing to learn.
        if type(told) is not int or self._path is not None:
            return
        with self._lock:
            if self._closing.is_set() or self._learning is not None or not self._is_due(request.model):
                return
            self._learning = started(lambda: self._look_into(request, told), "token-count-learn")

    def close(self) -> None:
        """Idempotent; the database is its owner's to close."""
        with self._lock:
            self._closing.set()
            learning = self._learning
        if learning is not None:
            learning.join()
        self._ratios.close()

    # Learning …

    def _is_due(self, model: str) -> bool:
        count, last = self._looked.get(model, (0, float("-inf")))
        now = self._clock()
        if count >= _PROMPTS_AT_FIRST and now - last < _SECONDS_BETWEEN_PROMPTS:
            return False
        self._looked[model] = (count + 1, now)
        return True

    def _look_into(self, request: ChatRequest, told: int) -> None:
        # Whoever starts a thread waits for its first breath, which must not be a long one.
        self._closing.wait(_SECONDS_BEFORE_LOOKING)
        try:
            self._ratios.learn(request.model, estimated_prompt(request), told)
        finally:
            with self._lock:
                self._learning = None

    # The tokenizer …

    def wait_for_tokenizer(self, timeout: float) -> bool:
        """Wait until its file is read, if that has begun; whether counts are exact from now on."""
        loading = self._loading
        if loading is not None:
            loading.join(timeout)
        return self._count_text is not None

    def _is_loaded(self, path: Path) -> bool:
        """Whether the tokenizer can be used; the first to ask has it read in the background."""
        with self._lock:
            if self._loading is None:
                self._loading = started(lambda: self._load(path), "tokenizer-load")
        return self._count_text is not None

    def _load(self, path: Path) -> None:
        # Only here: most proxies never need it, and are smaller without.
        from deepseek_cursor_proxy.tokens.bpe import Tokenizer
        from deepseek_cursor_proxy.tokens.regex import NotUnderstood

        try:
            self._count_text = Tokenizer(json.loads(path.expanduser().read_bytes())).count
        except NotUnderstood as problem:
            self._warn(path, f"it has {problem}, which this proxy does not know")
        except (OSError, ValueError, RecursionError, RuntimeError, MemoryError) as error:
            self._warn(path, error.strerror or "" if isinstance(error, OSError) else f"no tokenizer.json ({error})")

    def _warn(self, path: Path, why: str) -> None:
        _log.warning("tokenizer: %s cannot be used (%s); tokens are estimated", path, why)

    def _exactly(self, text: str) -> int:
        assert self._count_text is not None
        if len(text) < _SHORTEST_REMEMBERED:
            return self._count_text(text)
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        count = self._texts.get(key)
        if count is None:
            count = self._count_text(text)
            self._texts.keep(key, count)
        return count
