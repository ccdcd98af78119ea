"""TokenCounter counts the tokens of a prompt: exactly with a tokenizer file from the user, else by an estimate.

`count` never waits for the file: until it is read, the estimate is returned.
"""

import hashlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.conversation import ChatRequest, Memo
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.features.tokens.estimate import count_prompt, estimate_prompt
from deepseek_cursor_proxy.net.threads import start_thread

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services
    from deepseek_cursor_proxy.features.tokens.bpe import BpeTokenizer

_log = logging.getLogger(__name__)

# Clients count the same long chat again and again. Counting a shorter text is as fast as looking it up.
_SHORTEST_REMEMBERED = 512
# A digest, a number and a dictionary entry. The budget below holds some 12,000 texts.
_BYTES_PER_TEXT = 170
_MAX_BYTES_OF_TEXTS = 2 * 1024 * 1024


class TokenCounter(Feature):
    """Called by any thread. The lock protects the start of the loader."""

    name = "tokens"

    def __init__(self, config: ProxyConfig) -> None:
        """Opens no file."""
        self._path = config.tokenizer
        self._lock = threading.Lock()
        # Once its file is read.
        self._tokenizer: BpeTokenizer | None = None
        self._loader: threading.Thread | None = None
        self._texts: Memo[bytes, int] = Memo(_MAX_BYTES_OF_TEXTS, lambda key, count: _BYTES_PER_TEXT)

    def count(self, request: ChatRequest) -> int:
        if self._path is not None and self._is_loaded(self._path):
            return count_prompt(request, self._count_exactly)
        return estimate_prompt(request)

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
        from deepseek_cursor_proxy.features.tokens.bpe import read_tokenizer

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
            self._texts.put(key, count)
        return count


def check_file(path: Path) -> None:
    """Raise StartupError if the file cannot be opened. It is read when first needed, which takes a second."""
    try:
        expand_home(path).open("rb").close()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}; choose another file with --tokenizer") from None


def open(services: "Services") -> "Services":
    return services.add(TokenCounter(services.config))
