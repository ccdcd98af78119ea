"""TokenCounter counts the tokens of a prompt: exactly with a tokenizer file from the user, else by an estimate.

    count      never waits for a file: until the tokenizer is read, it returns the estimate
    learn      compares DeepSeek's own count with the estimate, later, in a thread of its own, when the proxy is idle

Estimating a prompt of 436 kB takes 25 ms, and every other thread waits for parts of that. So `learn` takes samples: no
long prompts; of each model 16, unless an earlier process has learned enough, then one a minute. `storage.learned`
keeps the ratio between the two counts.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.conversation.memo import Memo
from deepseek_cursor_proxy.deepseek.usage import count_of
from deepseek_cursor_proxy.net.threads import BackgroundTask, start_thread
from deepseek_cursor_proxy.storage.learned import TokenRatios
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.tokens.estimate import count_prompt, estimate_prompt

if TYPE_CHECKING:
    from deepseek_cursor_proxy.tokens.bpe import BpeTokenizer

_log = logging.getLogger(__name__)

# The mean hardly changes after this many samples.
_FIRST_SAMPLES = 16
_SECONDS_BETWEEN_SAMPLES = 60.0
# Longest prompt that is sampled: its estimate takes 7 ms, and a longer one teaches no more.
_MOST_TOKENS = 32_000
# The proxy is idle if it uses less CPU than this within this time. After so many busy tries a sample is dropped.
_IDLE_CPU_SECONDS = 0.005
_SECONDS_TO_BE_IDLE = 0.1
_MOST_TRIES = 50
# Clients count the same long chat again and again. Counting a shorter text is as fast as looking it up.
_SHORTEST_REMEMBERED = 512
# A digest, a number and a dictionary entry. The budget below holds some 12,000 texts.
_BYTES_PER_TEXT = 170
_MAX_BYTES_OF_TEXTS = 2 * 1024 * 1024


class TokenCounter:
    """Called by workers. The lock protects `_sampled`, `_sample` and the start of the loader."""

    def __init__(self, config: ProxyConfig, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Opens no file."""
        self._path = config.tokenizer
        self._ratios = TokenRatios(database, clock=clock)
        self._clock = clock
        self._lock = threading.Lock()
        # Once its file is read.
        self._tokenizer: BpeTokenizer | None = None
        self._loader: threading.Thread | None = None
        self._texts: Memo[bytes, int] = Memo(_MAX_BYTES_OF_TEXTS, lambda key, count: _BYTES_PER_TEXT)
        # By model: the number of samples and the time of the last.
        self._sampled: dict[str, tuple[int, float]] = {}
        # The prompt that is sampled next, or now, and DeepSeek's count.
        self._sample: tuple[ChatRequest, int] | None = None
        self._sampler = BackgroundTask(self._take_sample, "token-count-learn")

    def count(self, request: ChatRequest) -> int:
        if self._path is not None and self._is_loaded(self._path):
            return count_prompt(request, self._count_exactly)
        return round(estimate_prompt(request) * self._ratios.ratio(request.model))

    def learn(self, request: ChatRequest, usage: Mapping[str, Any] | None) -> None:
        """Compare the estimate with the usage that DeepSeek reported for this request. Returns at once."""
        count = count_of(usage, "prompt_tokens") if usage is not None else 0
        # With a tokenizer there is nothing to learn, and a search adds to the prompt what it finds.
        if not 0 < count <= _MOST_TOKENS or self._path is not None or request.server_tools:
            return
        with self._lock:
            if self._sample is not None or not self._is_due(request.model):
                return
            self._sample = request, count
        self._sampler.wake()

    def close(self) -> None:
        """Stop sampling and write the ratios; idempotent. The owner of the database closes it."""
        self._sampler.close()
        self._ratios.close()

    def _is_due(self, model: str) -> bool:
        count, last = self._sampled.get(model, (0, float("-inf")))
        now = self._clock()
        if count >= _FIRST_SAMPLES and now - last < _SECONDS_BETWEEN_SAMPLES:
            return False
        self._sampled[model] = (count + 1, now)
        return True

    def _take_sample(self) -> None:
        """Estimate the prompt that waits as soon as the proxy is idle."""
        if self._sample is None:
            return
        request, count = self._sample
        try:
            is_first = self._sampled[request.model][0] == 1
            if is_first and self._ratios.has_learned(request.model):
                self._sampled[request.model] = (_FIRST_SAMPLES, self._clock())
            elif self._wait_until_idle():
                self._ratios.learn(request.model, estimate_prompt(request), count)
        finally:
            self._sample = None

    def _wait_until_idle(self) -> bool:
        for _ in range(_MOST_TRIES):
            before = time.process_time()
            self._sampler.pause(_SECONDS_TO_BE_IDLE)
            if self._sampler.is_closed:
                return False
            if time.process_time() - before < _IDLE_CPU_SECONDS:
                return True
        return False

    def _is_loaded(self, path: Path) -> bool:
        """Whether the tokenizer can be used. The first call starts reading it in the background."""
        with self._lock:
            if self._loader is None:
                self._loader = start_thread(lambda: self._load(path), "tokenizer-load")
        return self._tokenizer is not None

    def load_tokenizer(self) -> "BpeTokenizer | None":
        """The tokenizer of the settings, once its file is read; None if there is none or it is not usable."""
        if self._path is None:
            return None
        if not self._is_loaded(self._path):
            assert self._loader is not None
            self._loader.join()
        return self._tokenizer

    def _load(self, path: Path) -> None:
        # Imported here because most proxies have no tokenizer file and are smaller without.
        from deepseek_cursor_proxy.tokens.bpe import read_tokenizer

        try:
            self._tokenizer = read_tokenizer(path)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            _log.warning("tokenizer: %s cannot be used (%s); tokens are estimated", path, why)

    def _count_exactly(self, text: str) -> int:
        assert self._tokenizer is not None
        if len(text) < _SHORTEST_REMEMBERED:
            return self._tokenizer.count(text)
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        count = self._texts.get(key)
        if count is None:
            count = self._tokenizer.count(text)
            self._texts.keep(key, count)
        return count
