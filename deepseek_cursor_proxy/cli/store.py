"""The store for commands: opened as the settings say, counted and cleared."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.parser import load, resolve
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.private_files import SECRET_BYTES, given_secret, read_secret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore


@contextlib.contextmanager
def open_store(config: ProxyConfig, *, must_open: bool = True) -> Iterator[ReasoningStore]:
    """Open the configured store and close it at the end.

    With `must_open` StartupError for a file that cannot be used. If there is none, an empty store in memory stands for
    it: commands create no file.
    """
    path = expand_home(config.reasoning_content_path)
    try:
        reasonings = ReasoningStore(
            path if path.exists() or not must_open else ":memory:",
            max_age_seconds=config.reasoning_cache_max_age_seconds,
            max_rows=config.reasoning_cache_max_rows,
            durability=config.durability,
            must_open=must_open,
        )
        with contextlib.closing(reasonings) as store:
            yield store
    except Unusable as fault:
        raise StartupError(f"cannot use {path} as the reasoning store: {fault}") from None


def print_stats(options: dict[str, Any]) -> None:
    """Print how much is stored."""
    from datetime import datetime

    config = load(options).config
    with open_store(config) as store:
        stats, others = store.stats(), _others(store, config)
    oldest = "-" if stats.oldest_use is None else datetime.fromtimestamp(stats.oldest_use).isoformat(" ", "minutes")
    is_there = expand_home(config.reasoning_content_path).exists()
    print(f"store        {config.reasoning_content_path}{'' if is_there else ' (no file yet)'}")
    print(f"reasonings   {stats.reasonings:,} (of at most {config.reasoning_cache_max_rows:,})")
    print(f"lookup keys  {stats.keys:,} (by which a turn is found again)")
    print(f"text         {stats.bytes:,} bytes")
    print(f"oldest use   {oldest}")
    for other in others:
        for name, text in other.lines.items():
            print(f"{name:<12} {text}")


def print_secret(options: dict[str, Any]) -> None:
    """Print the installation secret, for the other proxies."""
    config = load(options).config
    store = expand_home(config.reasoning_content_path)
    known = given_secret() or read_secret(store)
    print((known or os.urandom(SECRET_BYTES)).hex(), flush=True)
    if known is None:
        print("deepseek-cursor-proxy: there was no secret yet; this new one is for every proxy", file=sys.stderr)


def run_clear(options: dict[str, Any]) -> None:
    config = load(options).config
    with open_store(config) as store:
        if not options["yes"]:
            found = " and ".join([f"{store.stats().reasonings:,} reasonings", *_counts(store, config)])
            questions.confirm("store clear", f"Delete {found} in {config.reasoning_content_path}?")
        print(clear(store, config))


def clear(store: ReasoningStore, config: ProxyConfig) -> str:
    """Delete all but usage and what was learned; returns a line that says how much. Raises Unusable."""
    counts = _counts(store, config)
    return " and ".join([f"Cleared {store.clear(*proxy.CLEARED):,} stored reasonings", *counts]) + "."


def _counts(store: ReasoningStore, config: ProxyConfig) -> list[str]:
    return [f"{other.number:,} {other.what}" for other in _others(store, config) if other.number]


def _others(store: ReasoningStore, config: ProxyConfig) -> list[Any]:
    """A `Stored` of each feature that has something in the store; raises Unusable."""
    return [resolve(name)(store.database, config) for name in proxy.STORED]
