"""Services: the stores, the upstream client and the observers that exchanges and endpoints share."""

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.model_names import vision_model
from deepseek_cursor_proxy.deepseek.prices import USD, PriceList
from deepseek_cursor_proxy.exchange.background_jobs import Jobs
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RequestReport
from deepseek_cursor_proxy.exchange.upstreams import Upstreams
from deepseek_cursor_proxy.observers.console import Console
from deepseek_cursor_proxy.observers.events import Finished, Handlers, Observers
from deepseek_cursor_proxy.observers.request_log import RequestLog
from deepseek_cursor_proxy.observers.standard_streams import has_colours
from deepseek_cursor_proxy.reasoning.chats import Chats
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.sessions.service import SessionService
from deepseek_cursor_proxy.storage.answers import CachedAnswers
from deepseek_cursor_proxy.storage.learned import KeyNamespaces, ReasoningForms
from deepseek_cursor_proxy.storage.private_files import InstallationSecret, given_secret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.storage.responses import ResponseStore
from deepseek_cursor_proxy.tokens.counter import TokenCounter
from deepseek_cursor_proxy.upstream.client import UpstreamClient
from deepseek_cursor_proxy.usage.ledger import UsageLedger

if TYPE_CHECKING:
    from deepseek_cursor_proxy.config.named_keys import NamedKey
    from deepseek_cursor_proxy.storage.shared.state import SharedState
    from deepseek_cursor_proxy.usage.limits import Limiter

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    config: ProxyConfig
    access: Access
    reasoning_store: ReasoningStore
    chats: Chats
    response_cache: CachedAnswers
    # Gives a request the response cache, if it is to use it; None if no request may.
    use_cache: Callable[[ClientRequest], ClientRequest] | None
    # Saves time only; see chat_memory.
    memory: ChatMemory
    responses: ResponseStore
    jobs: Jobs
    counter: TokenCounter
    upstream: UpstreamClient
    upstreams: Upstreams
    # Learned from answers of the upstreams, and taken over by the next ones.
    reasoning_forms: ReasoningForms
    key_namespaces: KeyNamespaces
    prices: PriceList
    # In USD, for the budgets of named keys.
    budget_prices: PriceList
    # None as long as no key has a name; survives a reload.
    limiter: "Limiter | None"
    # Rebuilt at SIGHUP; an observer that must survive, or that an endpoint reads, is a field of its own.
    observers: Observers
    request_log: RequestLog
    sessions: SessionService
    # Has requests from the request log.
    ledger: UsageLedger
    # Seals the reasoning that clients hold for us.
    secret: InstallationSecret
    # What several proxies share; None without an engine.
    shared: "SharedState | None"
    # Numbers requests for the log; next() on a count is atomic.
    numbers: Iterator[int]

    @classmethod
    def build(cls, config: ProxyConfig, reasoning_store: ReasoningStore) -> "Services":
        _warn_of_pictures(config)
        client = UpstreamClient(config)
        database = reasoning_store.database
        secret = InstallationSecret(Path(database.path), given_secret(config.secret_file))
        shared = _open_shared(config, secret, reasoning_store) if config.store else None
        forms = ReasoningForms(database)
        request_log, sessions = RequestLog(), SessionService(config, Path(database.path))
        ledger = UsageLedger(database)
        request_log.subscribe(ledger.add)
        access = Access(config, was_accepted_before=ledger.was_accepted_before)
        responses = ResponseStore(database)
        if shared is not None:
            from deepseek_cursor_proxy.storage.shared.responses import SharedResponses

            responses.share(SharedResponses(shared, responses))
        if count := responses.fail_orphans():
            _log.warning("%d stored responses were not finished when the proxy last stopped and are failed now", count)
        answers = CachedAnswers(database)
        return cls(
            config=config,
            access=access,
            reasoning_store=reasoning_store,
            chats=Chats(),
            response_cache=answers,
            use_cache=_cache_use(config, answers),
            memory=ChatMemory(),
            responses=responses,
            jobs=Jobs(config.background_workers, config.background_queue),
            counter=TokenCounter(config),
            upstream=client,
            upstreams=Upstreams(config, forms, client.call_limits, _owner_key(config, access)),
            reasoning_forms=forms,
            key_namespaces=KeyNamespaces(database, shared.keep_first if shared is not None else None),
            prices=PriceList(config),
            budget_prices=PriceList(config, USD),
            limiter=_limiter(config, reasoning_store, None, shared),
            observers=_build_observers(config, request_log, ledger, sessions),
            request_log=request_log,
            sessions=sessions,
            secret=secret,
            shared=shared,
            ledger=ledger,
            numbers=itertools.count(1),
        )

    def rebuild(self, config: ProxyConfig) -> "Services":
        """The services for another configuration, which take over all that survives the change."""
        _warn_of_pictures(config)
        access, client = Access(config, self.access), UpstreamClient(config)
        owner_key = _owner_key(config, access)
        self.sessions.reconfigure(config)
        return replace(
            self,
            config=config,
            access=access,
            use_cache=_cache_use(config, self.response_cache),
            upstream=client,
            upstreams=Upstreams(config, self.reasoning_forms, client.call_limits, owner_key, self.upstreams),
            prices=PriceList(config),
            budget_prices=PriceList(config, USD),
            limiter=_limiter(config, self.reasoning_store, self.limiter, self.shared),
            observers=_build_observers(config, self.request_log, self.ledger, self.sessions),
        )

    def open_report(self, api: str, path_session: str = "") -> RequestReport:
        """The report of a new request, which came by this API, perhaps below the path of a session."""
        return RequestReport(self.observers, self.numbers, api, path_session)

    def namespace_of(self, named: "NamedKey", own: bytes) -> bytes:
        """Whose reasoning a named key finds: that of its name, or of its group; `own` is the namespace of the key."""
        base_url, group = self.config.upstream_base_url, self.config.groups.get(named.group)
        namespace = self.key_namespaces.get(named.holder, base_url, own)
        if group is not None and group.share_reasoning:
            namespace = self.key_namespaces.get(group.holder, base_url, namespace)
        return namespace

    def accept(self, caller: bytes) -> None:
        """Write what was held for a caller until an upstream accepted its key (see `access`)."""
        self.sessions.accept(caller)
        self.responses.accept(caller)

    def close_upstream(self) -> None:
        """New services have taken over: running exchanges may finish, then their connections are closed."""
        self.upstream.close()

    def close(self) -> None:
        # First, because jobs write into the stores that are closed next.
        self.jobs.stop(0)
        if self.limiter is not None:
            self.limiter.close()
        self.sessions.close()
        self.ledger.close()
        self.responses.close()
        self.response_cache.close()
        self.upstream.close()
        if self.shared is not None:
            self.shared.close()


def _open_shared(config: ProxyConfig, secret: InstallationSecret, reasonings: ReasoningStore) -> "SharedState":
    # Only here: most proxies have no engine, and are smaller without these modules.
    from deepseek_cursor_proxy.reasoning.sealed import Sealer
    from deepseek_cursor_proxy.storage.shared.reasonings import SharedReasonings
    from deepseek_cursor_proxy.storage.shared.state import SharedState

    assert config.store is not None
    shared = SharedState(config.store, secret.read(), reasonings.database, Sealer)
    reasonings.share(SharedReasonings(shared, config.reasoning_cache_max_age_seconds))
    shared.open()
    return shared


def _limiter(
    config: ProxyConfig, store: ReasoningStore, former: "Limiter | None", shared: "SharedState | None"
) -> "Limiter | None":
    if former is not None or not config.keys:
        return former
    # Only here: a proxy without named keys starts faster without.
    from deepseek_cursor_proxy.storage.limits import LimitTables
    from deepseek_cursor_proxy.usage.limits import Limiter

    if shared is None:
        return Limiter(LimitTables(store.database))
    from deepseek_cursor_proxy.storage.shared.limits import SharedLimits

    return Limiter(SharedLimits(shared))


def _cache_use(config: ProxyConfig, answers: CachedAnswers) -> Callable[[ClientRequest], ClientRequest] | None:
    if config.response_cache == "off":
        return None
    # Only here: most proxies keep no answers, and are smaller without the module.
    from deepseek_cursor_proxy.exchange.response_cache import use_cache

    return partial(use_cache, answers, config.response_cache)


def _owner_key(config: ProxyConfig, access: Access) -> str | None:
    """The held key, or else a variable that holds one for a named key: these are for DeepSeek alone. None: no such."""
    return access.held_key or next((key.upstream_key_env for key in config.keys.values() if key.upstream_key_env), None)


def _warn_of_pictures(config: ProxyConfig) -> None:
    if config.pictures == "flash" and vision_model(config) is None:
        url = safe_text(config.upstream_base_url, 200)
        _log.warning('pictures = "flash" has no effect: %s is not known to serve deepseek-flash', url)


def _build_observers(
    config: ProxyConfig, request_log: RequestLog, ledger: UsageLedger, sessions: SessionService
) -> Observers:
    console = Console(verbose=config.verbose, colour=has_colours())
    tables: list[Handlers] = [console.handlers, request_log.handlers]
    tables += [{Finished: sessions.emit}]
    if config.trace_dir is not None:
        # Only here: most proxies write no trace, and are smaller without the module.
        from deepseek_cursor_proxy.observers.trace import Trace

        tables.append(Trace(config.trace_dir, request_log.run).handlers)
    return Observers(*tables)
