"""The collaborators an exchange needs, built once from a configuration and a store."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation_store import ConversationStore
from deepseek_cursor_proxy.observers import Observer, Observers
from deepseek_cursor_proxy.observers.console import Console
from deepseek_cursor_proxy.reasoning_store import ReasoningStore
from deepseek_cursor_proxy.upstream import Upstream


@dataclass(frozen=True)
class Services:
    config: ProxyConfig
    access: Access
    reasoning_store: ReasoningStore
    conversations: ConversationStore
    upstream: Upstream
    observers: Observers
    # Numbers exchanges for the people who read logs; next() on a count is atomic.
    numbers: Iterator[int]

    @classmethod
    def build(
        cls, config: ProxyConfig, reasoning_store: ReasoningStore, former: "Services | None" = None
    ) -> "Services":
        """New services; from `former` ones they take over whatever has to survive a change of the configuration."""
        observers: list[Observer] = [Console(verbose=config.verbose, colour=sys.stderr.isatty())]
        if config.trace_dir is not None:
            # Only here: most proxies never write one, and are smaller without.
            from deepseek_cursor_proxy.observers.trace import Trace

            observers.append(Trace(config.trace_dir))
        access = Access(config, former.access if former is not None else None)
        if former is not None:
            conversations, numbers = former.conversations, former.numbers
        else:
            conversations = ConversationStore(
                reasoning_store.database, max_age_seconds=config.reasoning_cache_max_age_seconds
            )
            numbers = itertools.count(1)
        return cls(config, access, reasoning_store, conversations, Upstream(config), Observers(observers), numbers)

    def retire(self) -> None:
        """Others have taken over; what still runs here may finish, on connections that nobody keeps afterwards."""
        self.upstream.close()

    def close(self) -> None:
        self.conversations.close()
        self.upstream.close()
