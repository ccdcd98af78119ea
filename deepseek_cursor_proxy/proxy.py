"""Proxy: the core with all features. The composition root: the only file that imports core and features."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek.prices import USD, PriceList
from deepseek_cursor_proxy.exchange.client_request import Admission, ClientRequest
from deepseek_cursor_proxy.exchange.services import PathSession, Services, build_core, build_observers
from deepseek_cursor_proxy.features.response_cache.cache import use_cache
from deepseek_cursor_proxy.features.response_cache.store import CachedAnswers
from deepseek_cursor_proxy.features.responses.background_jobs import Jobs
from deepseek_cursor_proxy.features.responses.store import ResponseStore
from deepseek_cursor_proxy.features.sessions.service import SessionService
from deepseek_cursor_proxy.features.usage.ledger import UsageLedger
from deepseek_cursor_proxy.observers.events import Finished, Handlers, Observers
from deepseek_cursor_proxy.observers.request_log import RequestLog
from deepseek_cursor_proxy.storage.private_files import InstallationSecret, given_secret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.tokens.counter import TokenCounter

if TYPE_CHECKING:
    from deepseek_cursor_proxy.features.keys.limits import Limiter
    from deepseek_cursor_proxy.config.named_keys import NamedKey
    from deepseek_cursor_proxy.features.redis.state import SharedState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proxy(Services):
    """Modules that most proxies do not need are imported where they are used."""

    # Seals what clients and the engine hold for us.
    secret: InstallationSecret
    # What several proxies share; None without an engine.
    shared: "SharedState | None"
    responses: ResponseStore
    jobs: Jobs
    sessions: SessionService
    counter: TokenCounter
    response_cache: CachedAnswers
    # Has requests from the request log.
    ledger: UsageLedger
    # None as long as no key has a name; survives a reload.
    limiter: "Limiter | None"
    # In USD, for the budgets of named keys.
    budget_prices: PriceList

    @classmethod
    def build(cls, config: ProxyConfig, reasoning_store: ReasoningStore) -> "Proxy":
        database = reasoning_store.database
        secret = InstallationSecret(Path(database.path), given_secret(config.secret_file))
        shared = _open_shared(config, secret, reasoning_store) if config.store else None
        ledger, sessions = UsageLedger(database), SessionService(config, Path(database.path))
        access = Access(config, was_accepted_before=ledger.was_accepted_before)
        core = build_core(config, reasoning_store, access, shared.keep_first if shared is not None else None)
        core.request_log.subscribe(ledger.add)
        parts = {**vars(core), "observers": _build_observers(config, core.request_log, sessions)}
        return cls(
            **parts,
            secret=secret,
            shared=shared,
            responses=_open_responses(reasoning_store, shared),
            jobs=Jobs(config.background_workers, config.background_queue),
            sessions=sessions,
            counter=TokenCounter(config),
            response_cache=CachedAnswers(database),
            ledger=ledger,
            limiter=_limiter(config, reasoning_store, None, shared),
            budget_prices=PriceList(config, USD),
        )

    def rebuild(self, config: ProxyConfig) -> Self:
        self.sessions.reconfigure(config)
        return replace(
            super().rebuild(config),
            observers=_build_observers(config, self.request_log, self.sessions),
            limiter=_limiter(config, self.reasoning_store, self.limiter, self.shared),
            budget_prices=PriceList(config, USD),
        )

    def close(self) -> None:
        # First, because jobs write into the stores that are closed next.
        self.jobs.stop(0)
        if self.limiter is not None:
            self.limiter.close()
        self.sessions.close()
        self.ledger.close()
        self.responses.close()
        self.response_cache.close()
        super().close()
        if self.shared is not None:
            self.shared.close()

    # Where features take part …

    def find_session(self, caller: bytes, session: str) -> PathSession | None:
        found = self.sessions.get(caller, session)
        return None if found is None else found.options

    def use_cache(self, client: ClientRequest) -> ClientRequest:
        if self.config.response_cache == "off":
            return client
        return use_cache(self.response_cache, self.config.response_cache, client)

    def admit_chat(self, named: "NamedKey", request: ChatRequest) -> Admission | None:
        from deepseek_cursor_proxy.features.keys import admission

        return admission.admit_chat(named, request, self)

    def admit_passthrough(self, named: "NamedKey", body: Mapping[str, Any], size: int) -> Admission | None:
        from deepseek_cursor_proxy.features.keys import admission

        return admission.admit_passthrough(named, body, size, self)

    def accept(self, caller: bytes) -> None:
        self.sessions.accept(caller)
        self.responses.accept(caller)

    def drain(self, seconds: float) -> None:
        self.jobs.stop(seconds)


def _build_observers(config: ProxyConfig, request_log: RequestLog, sessions: SessionService) -> Observers:
    tables: list[Handlers] = [{Finished: sessions.emit}]
    if config.trace_dir is not None:
        from deepseek_cursor_proxy.features.traces.trace import Trace

        tables.append(Trace(config.trace_dir, request_log.run).handlers)
    return build_observers(config, request_log, *tables)


def _open_shared(config: ProxyConfig, secret: InstallationSecret, reasonings: ReasoningStore) -> "SharedState":
    from deepseek_cursor_proxy.features.redis.reasonings import SharedReasonings
    from deepseek_cursor_proxy.features.redis.state import SharedState
    from deepseek_cursor_proxy.reasoning.sealed import Sealer

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
    from deepseek_cursor_proxy.features.keys.limits import Limiter
    from deepseek_cursor_proxy.features.keys.store import LimitTables

    if shared is None:
        return Limiter(LimitTables(store.database))
    from deepseek_cursor_proxy.features.redis.limits import SharedLimits

    return Limiter(SharedLimits(shared))


def _open_responses(reasonings: ReasoningStore, shared: "SharedState | None") -> ResponseStore:
    responses = ResponseStore(reasonings.database)
    if shared is not None:
        from deepseek_cursor_proxy.features.redis.responses import SharedResponses

        responses.share(SharedResponses(shared, responses))
    if count := responses.fail_orphans():
        _log.warning("%d stored responses were not finished when the proxy last stopped and are failed now", count)
    return responses
