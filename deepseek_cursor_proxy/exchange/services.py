"""Services: what every endpoint and exchange of the core uses: the store, the upstreams, the observers.

`proxy.Proxy` adds the features. The methods at the end are the places where one takes part in a request of the core;
here they do nothing.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek.model_names import vision_model
from deepseek_cursor_proxy.deepseek.prices import PriceList
from deepseek_cursor_proxy.exchange.client_request import Admission, ClientRequest, RequestReport
from deepseek_cursor_proxy.exchange.upstreams import Upstreams
from deepseek_cursor_proxy.observers.console import Console
from deepseek_cursor_proxy.observers.events import Handlers, Observers
from deepseek_cursor_proxy.observers.request_log import RequestLog
from deepseek_cursor_proxy.observers.standard_streams import has_colours
from deepseek_cursor_proxy.reasoning.chats import Chats
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.learned import KeyNamespaces, ReasoningForms
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.upstream.client import UpstreamClient

if TYPE_CHECKING:
    from deepseek_cursor_proxy.config.named_keys import NamedKey

_log = logging.getLogger(__name__)


class PathSession(Protocol):
    """The session of a path: whether it asks to convert calls in the model's own markup."""

    @property
    def reads_written_calls(self) -> bool: ...


@dataclass(frozen=True)
class Services:
    config: ProxyConfig
    access: Access
    reasoning_store: ReasoningStore
    chats: Chats
    # Saves time only; see chat_memory.
    memory: ChatMemory
    upstream: UpstreamClient
    upstreams: Upstreams
    # Learned from answers of the upstreams, and taken over by the next ones.
    reasoning_forms: ReasoningForms
    key_namespaces: KeyNamespaces
    prices: PriceList
    # Rebuilt at SIGHUP; an observer that must survive, or that an endpoint reads, is a field of its own.
    observers: Observers
    request_log: RequestLog
    # Numbers requests for the log; next() on a count is atomic.
    numbers: Iterator[int]

    @classmethod
    def build(cls, config: ProxyConfig, reasoning_store: ReasoningStore) -> "Services":
        return build_core(config, reasoning_store, Access(config))

    def rebuild(self, config: ProxyConfig) -> Self:
        """The services for another configuration, which take over all that survives the change."""
        _warn_of_pictures(config)
        access, client = Access(config, self.access), UpstreamClient(config)
        return replace(
            self,
            config=config,
            access=access,
            upstream=client,
            upstreams=Upstreams(
                config, self.reasoning_forms, client.call_limits, owner_key(config, access), self.upstreams
            ),
            prices=PriceList(config),
            observers=build_observers(config, self.request_log),
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

    def close_upstream(self) -> None:
        """New services have taken over: running exchanges may finish, then their connections are closed."""
        self.upstream.close()

    def close(self) -> None:
        self.upstream.close()

    # Where features take part …

    def find_session(self, caller: bytes, session: str) -> PathSession | None:
        """The session of a caller with the id in the path; None if there is none. Raises Unusable."""
        return None

    def use_cache(self, client: ClientRequest) -> ClientRequest:
        """The request, with the response cache if it is to use it."""
        return client

    def admit_chat(self, named: "NamedKey", request: ChatRequest) -> Admission | None:
        """Reserve what a generation of a named key may use; None if nothing limits it. Raises a ProxyError."""
        return None

    def admit_passthrough(self, named: "NamedKey", body: Mapping[str, Any], size: int) -> Admission | None:
        """The same for a request that another upstream gets as it came."""
        return None

    def accept(self, caller: bytes) -> None:
        """Write what was held for a caller until an upstream accepted its key (see `access`)."""

    def drain(self, seconds: float) -> None:
        """Let work that no client waits for finish for that long, then end it."""


def build_core(
    config: ProxyConfig,
    reasoning_store: ReasoningStore,
    access: Access,
    keep_first: Callable[[str, bytes], bytes | None] | None = None,
) -> Services:
    """`keep_first`: see KeyNamespaces."""
    _warn_of_pictures(config)
    client, database, request_log = UpstreamClient(config), reasoning_store.database, RequestLog()
    forms = ReasoningForms(database)
    return Services(
        config=config,
        access=access,
        reasoning_store=reasoning_store,
        chats=Chats(),
        memory=ChatMemory(),
        upstream=client,
        upstreams=Upstreams(config, forms, client.call_limits, owner_key(config, access)),
        reasoning_forms=forms,
        key_namespaces=KeyNamespaces(database, keep_first),
        prices=PriceList(config),
        observers=build_observers(config, request_log),
        request_log=request_log,
        numbers=itertools.count(1),
    )


def build_observers(config: ProxyConfig, request_log: RequestLog, *more: Handlers) -> Observers:
    console = Console(verbose=config.verbose, colour=has_colours())
    return Observers(console.handlers, request_log.handlers, *more)


def owner_key(config: ProxyConfig, access: Access) -> str | None:
    """The held key, or else a variable that holds one for a named key: these are for DeepSeek alone. None: no such."""
    return access.held_key or next((key.upstream_key_env for key in config.keys.values() if key.upstream_key_env), None)


def _warn_of_pictures(config: ProxyConfig) -> None:
    if config.pictures == "flash" and vision_model(config) is None:
        url = safe_text(config.upstream_base_url, 200)
        _log.warning('pictures = "flash" has no effect: %s is not known to serve deepseek-flash', url)
