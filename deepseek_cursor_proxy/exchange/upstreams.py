"""Upstreams: the servers that generate answers, and the order in which a request tries them.

Without a table [upstreams] there is one, that of the settings `base_url` and `upstream_host`. With tables, a chat stays
where it was answered last, for the prefix cache; a new one goes to

    those that are ready    breaker closed or a probe due, and a key that is not set aside
    those with a free slot
    the first priority
    within it, by weight    decided by the digest of the chat, so that a restart changes nothing

and the others follow in the same order. `targets` goes through them, `upstream/client` sends.
"""

import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import is_anthropic_key, is_credential
from deepseek_cursor_proxy.config.upstreams import UpstreamTable, serving
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek import hosts
from deepseek_cursor_proxy.deepseek.apis.api import CHAT, UpstreamApi, with_server_tools
from deepseek_cursor_proxy.deepseek.hosts import Host
from deepseek_cursor_proxy.errors import NotFound, ProxyError
from deepseek_cursor_proxy.exchange.host_choice import HostChoice
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.learned import ReasoningForms
from deepseek_cursor_proxy.upstream.breaker import Breaker
from deepseek_cursor_proxy.upstream.call_limit import CallLimit, CallLimits
from deepseek_cursor_proxy.upstream.connections import Destination
from deepseek_cursor_proxy.upstream.key_pool import KeyPool, RequestKind

_log = logging.getLogger(__name__)

# About a megabyte; a chat that is forgotten goes where a new one would.
_MOST_CHATS = 4096
# Long enough that no chat pays for the refusal again, short enough for a model that is added today.
MODEL_SECONDS = 600.0
_MOST_MODELS = 256


@dataclass(frozen=True)
class Upstream:
    """One upstream. `name` and `setting` are what error messages call it and point to."""

    name: str
    setting: str
    base_url: str
    host: Host
    host_choice: HostChoice
    table: UpstreamTable | None = None
    # The keys of its `key_env`; None: it is called with the request's key.
    keys: KeyPool | None = None
    breaker: Breaker | None = None

    @classmethod
    def of_settings(cls, config: ProxyConfig, forms: ReasoningForms) -> "Upstream":
        base_url = config.upstream_base_url.rstrip("/")
        host = hosts.choose(config.upstream_host, base_url)
        # A gateway of unknown kind is called by the name of what it leads to.
        name = "DeepSeek" if host in (hosts.DEEPSEEK, hosts.UNKNOWN) else urlsplit(base_url).hostname or base_url
        if config.host_options:
            host = replace(host, options=config.host_options)
        return cls(name, "--base-url", base_url, host, HostChoice(host, base_url, forms))

    @classmethod
    def of_table(cls, name: str, table: UpstreamTable, forms: ReasoningForms, keys: KeyPool | None) -> "Upstream":
        host = hosts.choose(table.host, table.base_url)
        if table.options:
            host = replace(host, options=table.options)
        choice = HostChoice(host, table.base_url, forms)
        return cls(name, f"base_url of [upstreams.{name}]", table.base_url, host, choice, table, keys, Breaker())

    @property
    def state(self) -> str:
        """The breaker's state: closed, open or half_open; also open while no key is ready."""
        if self.keys is not None and not self.keys.is_ready:
            return "open"
        return self.breaker.state if self.breaker is not None else "closed"

    @property
    def has_keys(self) -> bool:
        """Whether it can be called: with a key of its `key_env`, or with the request's key."""
        return self.keys is None or not self.keys.is_empty

    def is_ready_for(self, kind: RequestKind) -> bool:
        """Whether its breaker and one of its keys are ready for such a request."""
        return (self.breaker is None or self.breaker.is_ready) and (self.keys is None or self.keys.is_ready_for(kind))

    @cached_property
    def may_be_deepseek(self) -> bool:
        """Whether it is DeepSeek, or a gateway of unknown kind that may lead there."""
        return self.host.name in (hosts.DEEPSEEK.name, hosts.UNKNOWN.name)

    def api(self, wanted: UpstreamApi, request: ChatRequest) -> UpstreamApi:
        """The API to call it with; of several upstreams only DeepSeek is known to have more than chat completions."""
        is_deepseek = self.table is None or self.may_be_deepseek
        if wanted is not CHAT and is_deepseek:
            return wanted
        chat = self.host_choice.chat_api()
        return with_server_tools(chat) if request.server_tools else chat

    @property
    def beta_url(self) -> str | None:
        return hosts.beta_url(self.host, self.base_url)

    def destination(self, path: str, *, is_unversioned: bool = False, is_beta: bool = False) -> Destination:
        base_url = self.base_url
        if is_unversioned:
            base_url = base_url.removesuffix("/v1").removesuffix("/beta")
        elif is_beta:
            base_url = self.beta_url or base_url
        return _destination(base_url, path, self.name, self.setting)

    def limit_name(self, model: str) -> str:
        """The name under which calls of a model are limited."""
        if self.table is None:
            return model
        if self.table.max_calls is not None:
            return self.name
        # Not the model itself: clients may name any.
        return f"{self.name}/flash" if "flash" in model else f"{self.name}/"

    def is_own_limit(self, name: str) -> bool:
        """Whether its calls are limited under this name; without tables all are its own."""
        return self.table is None or name.partition("/")[0] == self.name


@lru_cache(64)
def _destination(base_url: str, path: str, name: str, setting: str) -> Destination:
    """The same object for the same call, so that its URL is hashed once."""
    return Destination(base_url + path, name, setting)


class Candidate(NamedTuple):
    """An upstream that serves a model, and what it calls the model."""

    upstream: Upstream
    model: str


class RoutedChat(NamedTuple):
    """A chat to find an upstream for; `can_spend`: its caller may spend the keys of `key_env`."""

    digest: bytes
    caller: bytes = b""
    can_spend: bool = True
    # The limit in which the chat has reserved slots.
    reserved: CallLimit | None = None
    max_tokens: object = None

    def kind(self, model: str) -> RequestKind:
        """The kind of its requests; `model` is the upstream's name of the model."""
        return RequestKind(self.caller, model, self.max_tokens)


class ChatRoute(NamedTuple):
    """Where a chat was answered last, and the digest of the owner's key that was used for it."""

    upstream: str
    key_digest: str | None


class Upstreams:
    """The upstreams of a configuration. Called by workers.

    The lock protects writes of `_refused`, and `_routes`, which the next configuration takes over.
    """

    def __init__(
        self,
        config: ProxyConfig,
        forms: ReasoningForms,
        limits: CallLimits,
        held_key: str | None = None,
        former: "Upstreams | None" = None,
        *,
        environment: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._now = now
        self._tables = config.upstreams
        # The upstream of the settings; None if there are tables [upstreams].
        self.only = None if config.upstreams else Upstream.of_settings(config, forms)
        self._all = {
            name: Upstream.of_table(name, table, forms, _keys(name, table, held_key, environment))
            for name, table in config.upstreams.items()
        }
        self._lock: threading.Lock = threading.Lock() if former is None else former._lock
        self._routes: OrderedDict[bytes, ChatRoute] = OrderedDict() if former is None else former._routes
        # Refused models, and until when; a refusal of a caller's own key counts for this caller only.
        self._refused: dict[tuple[str, str, bytes], float] = {}

    @property
    def all(self) -> tuple[Upstream, ...]:
        return tuple(self._all.values()) if self.only is None else (self.only,)

    def check(self, model: str, spend_refusal: ProxyError | None) -> None:
        """Raise a ProxyError if no upstream serves the model, or none that this caller may use."""
        found = [self._all[name] for name in serving(model, self._tables)]
        if not found:
            raise NotFound(
                f"No upstream serves {safe_text(model, 60)}. Name it under `models` of a table [upstreams].",
                code="model_not_found",
            )
        if spend_refusal is not None and all(upstream.keys is not None for upstream in found):
            raise spend_refusal

    def serving(self, model: str) -> list[Candidate]:
        """The upstreams that serve a model, in the order of the tables."""
        if self.only is not None:
            return [Candidate(self.only, model)]
        return [Candidate(self._all[name], sent) for name, sent in serving(model, self._tables).items()]

    def candidates(
        self, model: str, chat: RoutedChat, is_able: Callable[[Candidate], bool] = lambda candidate: True
    ) -> list[Candidate]:
        """The upstreams that serve a model, in the order in which they are asked for this chat.

        Among the ready upstreams, those that can run the request's tools come first.
        """
        found = self.serving(model)
        found = [candidate for candidate in found if chat.can_spend or candidate.upstream.keys is None]
        found = [candidate for candidate in found if not self._is_refused(candidate, chat)] or found
        route = self.route(chat.digest)
        own = route.upstream if route is not None else ""

        def rank(candidate: Candidate) -> tuple[bool, bool, bool, bool, int, float]:
            upstream, table = candidate.upstream, candidate.upstream.table
            assert table is not None
            limit = self.limit(candidate)
            is_full = limit is not chat.reserved and limit.is_full
            drawn = _draw(chat.digest, upstream.name) / table.weight
            is_ready = upstream.is_ready_for(chat.kind(candidate.model))
            return not is_ready, not is_able(candidate), upstream.name != own, is_full, table.priority, drawn

        return sorted(found, key=rank)

    def limit(self, candidate: Candidate) -> CallLimit:
        return self._limits.of(candidate.upstream.limit_name(candidate.model))

    def route(self, chat: bytes) -> ChatRoute | None:
        with self._lock:
            return self._routes.get(chat)

    def record_route(self, chat: bytes, route: ChatRoute) -> None:
        with self._lock:
            self._routes[chat] = route
            self._routes.move_to_end(chat)
            if len(self._routes) > _MOST_CHATS:
                self._routes.popitem(last=False)

    def record_refused_model(self, candidate: Candidate, chat: RoutedChat) -> bool:
        """Record that the upstream does not know the model; True if that was not known."""
        key = _refusal_key(candidate, chat)
        with self._lock:
            is_news = key not in self._refused
            if is_news and len(self._refused) >= _MOST_MODELS:
                self._refused.clear()
            self._refused[key] = self._now() + MODEL_SECONDS
        return is_news

    def _is_refused(self, candidate: Candidate, chat: RoutedChat) -> bool:
        until = self._refused.get(_refusal_key(candidate, chat))
        return until is not None and self._now() < until


def _refusal_key(candidate: Candidate, chat: RoutedChat) -> tuple[str, str, bytes]:
    """The key of a refused model in `_refused`: what one caller's key is refused says nothing about another's."""
    upstream = candidate.upstream
    return upstream.name, candidate.model, chat.caller if upstream.keys is None else b""


def _draw(chat: bytes, name: str) -> float:
    """An exponentially distributed number.

    Divided by its weight, an upstream's share of smallest values is proportional to the weight.
    """
    # Imported late: without tables nothing here needs OpenSSL.
    import hashlib

    number = int.from_bytes(hashlib.sha256(chat + name.encode()).digest()[:8])
    return -math.log((number + 1) / (2**64 + 1))


def _keys(name: str, table: UpstreamTable, held_key: str | None, environment: Mapping[str, str]) -> KeyPool | None:
    """The keys of `key_env`, whose variables may hold several each; None: the request's key is used."""
    if not table.key_env:
        host = hosts.choose(table.host, table.base_url)
        if held_key is None or host in (hosts.DEEPSEEK, hosts.UNKNOWN):
            return None
        # The held key is DeepSeek's, and its clients' keys are valid only at this proxy.
        _log.warning("[upstreams.%s] is not asked: it has no key_env, and DEEPSEEK_API_KEY is for DeepSeek alone", name)
        return KeyPool(())
    found = []
    for variable in table.key_env:
        keys = [key.strip() for key in environment.get(variable, "").split(",") if is_credential(key.strip())]
        own = [key for key in keys if not is_anthropic_key(key)]
        if len(own) < len(keys):
            _log.warning("[upstreams.%s] does not get the key of Anthropic (sk-ant-…) in %s", name, variable)
        elif not keys:
            _log.warning("[upstreams.%s] gets no key from %s: set it where the proxy is started", name, variable)
        found += own
    return KeyPool(found)
