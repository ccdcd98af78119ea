"""Services: what every endpoint and exchange uses: the store, the upstreams, the observers, and the features.

`proxy.build` opens the features. Where one takes part in a request, `Services` has a function for the core alone, which
the feature replaces with its own.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.chat_memory import ChatMemory
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek.api import UpstreamApi
from deepseek_cursor_proxy.deepseek.model_names import vision_model
from deepseek_cursor_proxy.deepseek.prices import PriceList
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.exchange.client_request import (
    Admission,
    ClientRequest,
    OpenExchange,
    WrittenCalls,
)
from deepseek_cursor_proxy.exchange.feature import Feature
from deepseek_cursor_proxy.exchange.upstreams import Upstream, Upstreams
from deepseek_cursor_proxy.observers.console import Console
from deepseek_cursor_proxy.observers.events import Observers
from deepseek_cursor_proxy.observers.standard_streams import has_colours
from deepseek_cursor_proxy.reasoning.chats import Chats
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.learned import KeyNamespaces, ReasoningForms
from deepseek_cursor_proxy.storage.private_files import InstallationSecret, given_secret
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.upstream.client import UpstreamClient

if TYPE_CHECKING:
    from deepseek_cursor_proxy.config.named_keys import NamedKey
    from deepseek_cursor_proxy.exchange.client_request import RelayedApi
    from deepseek_cursor_proxy.http1.messages import HttpReply

_log = logging.getLogger(__name__)


AnyFeature = TypeVar("AnyFeature", bound=Feature)


def refuse_choices(client: ClientRequest, services: "Services") -> OpenExchange:
    raise BadRequest("n: this proxy has one answer to a request. Leave n out.", param="n")


@dataclass(frozen=True)
class Services:
    config: ProxyConfig
    access: Access
    reasoning_store: ReasoningStore
    # Seals what clients hold for us.
    secret: InstallationSecret
    chats: Chats
    # Saves time only; see chat_memory.
    memory: ChatMemory
    upstream_client: UpstreamClient
    upstreams: Upstreams
    # Learned from answers of the upstreams, and taken over by the next ones.
    reasoning_forms: ReasoningForms
    key_namespaces: KeyNamespaces
    prices: PriceList
    # Rebuilt at SIGHUP; an observer that must survive, or that an endpoint reads, is a field of its own.
    observers: Observers
    # Numbers requests for the log; next() on a count is atomic.
    numbers: Iterator[int]
    # In the order in which they were opened.
    features: tuple[Feature, ...] = ()

    # Where features take part …

    # Add what a feature knows of the request of an admitted caller, before its body is read. Raises a ProxyError.
    extend: Callable[[ClientRequest], None] = lambda client: None
    # Called when an upstream has accepted a caller's key: write what was held for it until then (see `access`).
    on_accepted: tuple[Callable[[bytes], None], ...] = ()
    # Add the response cache to a request that is to use it.
    use_cache: Callable[[ClientRequest], None] = lambda client: None
    # Reserve what a named key may use for a generation, or for a body that another upstream gets as it came, of so many
    # bytes; None if nothing limits it. Raises a ProxyError.
    admit_chat: "Callable[[Services, NamedKey, ChatRequest], Admission | None]" = lambda services, named, request: None
    admit_passthrough: "Callable[[Services, NamedKey, Mapping[str, Any], int], Admission | None]" = (
        lambda services, named, body, size: None
    )
    # The reply of another upstream, if a table [passthrough] has the model of the body.
    relay: "Callable[[Services, ClientRequest, RelayedApi, bytes], HttpReply | None]" = (
        lambda services, client, api, raw: None
    )
    # The exchange of a request that wants several answers.
    open_choices: "Callable[[ClientRequest, Services], OpenExchange]" = refuse_choices
    # The converter of the calls that a model writes as text, for an answer that is searched for any.
    open_written_calls: "Callable[[Services, ClientRequest, ChatRequest, Upstream], WrittenCalls | None]" = (
        lambda services, client, request, upstream: None
    )
    # By the API of the client, that of DeepSeek which runs searches for it.
    search_apis: Mapping[str, UpstreamApi] = field(default_factory=dict)

    @classmethod
    def build(cls, config: ProxyConfig, reasoning_store: ReasoningStore) -> "Services":
        """The core alone."""
        _warn_of_pictures(config)
        access, client, database = Access(config), UpstreamClient(config), reasoning_store.database
        forms = ReasoningForms(database)
        return cls(
            config=config,
            access=access,
            reasoning_store=reasoning_store,
            secret=InstallationSecret(Path(database.path), given_secret()),
            chats=Chats(),
            memory=ChatMemory(),
            upstream_client=client,
            upstreams=Upstreams(config, forms, client.call_limits, has_held_key=_has_held_key(config, access)),
            reasoning_forms=forms,
            key_namespaces=KeyNamespaces(database),
            prices=PriceList(config),
            observers=_build_observers(config),
            numbers=itertools.count(1),
        )

    def add(self, feature: Feature, **functions: Any) -> "Services":
        """The services with one more feature, and its functions in place of those above."""
        return replace(self, features=(*self.features, feature), **functions)

    def start(self) -> "Services":
        """The services whose features are all there."""
        for feature in self.features:
            feature.start(self)
        return replace(self, observers=_build_observers(self.config, self.features))

    def get(self, kind: type[AnyFeature]) -> AnyFeature:
        """The feature of this class, which must be there."""
        return next(feature for feature in self.features if isinstance(feature, kind))

    def has(self, name: str) -> bool:
        return any(feature.name == name for feature in self.features)

    def rebuild(self, config: ProxyConfig) -> "Services":
        """The services for another configuration, which take over all that survives the change."""
        _warn_of_pictures(config)
        access, client = Access(config, self.access), UpstreamClient(config)
        services = replace(
            self,
            config=config,
            access=access,
            upstream_client=client,
            upstreams=Upstreams(
                config,
                self.reasoning_forms,
                client.call_limits,
                self.upstreams,
                has_held_key=_has_held_key(config, access),
            ),
            prices=PriceList(config),
        )
        for feature in self.features:
            feature.reconfigure(services)
        return replace(services, observers=_build_observers(config, self.features))

    def namespace_of(self, named: "NamedKey", own: bytes) -> bytes:
        """Whose reasoning a named key finds: that of its name, or of its group; `own` is the namespace of the key."""
        base_url, group = self.config.upstream_base_url, self.config.groups.get(named.group)
        namespace = self.key_namespaces.get(named.holder, base_url, own)
        if group is not None and group.share_reasoning:
            namespace = self.key_namespaces.get(group.holder, base_url, namespace)
        return namespace

    def flush(self) -> None:
        for feature in self.features:
            feature.flush()

    def drain(self, seconds: float) -> None:
        for feature in self.features:
            feature.drain(seconds)

    def close(self) -> None:
        # First, because such work writes into what is closed next.
        self.drain(0)
        for feature in reversed(self.features):
            feature.close()
        self.upstream_client.close()


def _build_observers(config: ProxyConfig, features: Iterable[Feature] = ()) -> Observers:
    console = Console(verbose=config.verbose, colour=has_colours())
    return Observers(console.handlers, *(feature.handlers() for feature in features))


def _has_held_key(config: ProxyConfig, access: Access) -> bool:
    """Whether any caller's requests are sent with a held key, which is for DeepSeek alone."""
    return access.held_key is not None or any(key.upstream_key_env for key in config.keys.values())


def _warn_of_pictures(config: ProxyConfig) -> None:
    if config.pictures == "flash" and vision_model(config) is None:
        url = safe_text(config.upstream_base_url, 200)
        _log.warning('pictures = "flash" has no effect: %s is not known to serve deepseek-flash', url)
