"""Upstreams: the servers that generate answers, and the order in which a request tries them.

Without a table [upstreams] there is one, that of the settings `base_url` and `upstream_host`. With tables, a chat stays
where it was answered last, for the prefix cache; a new one goes to

    those that are ready    breaker closed or a probe due, and a key that is not set aside
    those with a free slot
    the first priority
    within it, by weight    decided by the digest of the chat, so that a restart changes nothing

and the others follow in the same order. `failover` goes through them, `upstream/client` sends.

For a host that is not known by name (`hosts.choose`) the answers decide how it has reasoning: the form in which it came
is learned by base URL, and the next requests send reasoning back in it. How sure an answer is:

    a field                        used at once in place of anything but another field that is confirmed
    no reasoning at all            used at once if nothing is known; an omitted field need not mean no reasoning
    <think> at the beginning       used when a second answer in a row has it: a model may write that tag about anything;
                                   at once if the settings name the host `plain`, which has no other way

Any form is kept in the store when a second answer in a row shows it. Neither silence nor <think> replaces a field. A
refusal for missing `reasoning_content` means DeepSeek's own form, if the request is answered in it: a refusal may quote
the client's text.
"""

import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import is_anthropic_key, is_credential
from deepseek_cursor_proxy.config.upstreams import UpstreamTable, serving
from deepseek_cursor_proxy.conversation import ChatRequest, Reply
from deepseek_cursor_proxy.deepseek import hosts, server_tools
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi, chat_api_for, with_server_tools
from deepseek_cursor_proxy.deepseek.chat_stream import begins_with_block
from deepseek_cursor_proxy.deepseek.hosts import Host, ReasoningForm
from deepseek_cursor_proxy.errors import NotFound, ProxyError
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.learned import ReasoningForms
from deepseek_cursor_proxy.upstream.breaker import Breaker
from deepseek_cursor_proxy.upstream.call_limit import CallLimits
from deepseek_cursor_proxy.upstream.connections import Destination
from deepseek_cursor_proxy.upstream.key_pool import KeyLease, KeyPool, RequestKind

_log = logging.getLogger(__name__)

# About a megabyte; a chat that is forgotten goes where a new one would.
_MOST_CHATS = 4096
# The forms of reasoning that are fields of an answer: what an upstream says, and no text of a model.
_FIELDS = (ReasoningForm.CONTENT, ReasoningForm.REASONING, ReasoningForm.DETAILS)
_FIELD_NAMES = tuple(form.value for form in _FIELDS)
_CONTENT = ReasoningForm.CONTENT.value


@dataclass(eq=False)
class Upstream:
    """One upstream. `name` and `setting` are what error messages call it and point to.

    Called by any thread; only what it learns changes.
    """

    name: str
    setting: str
    base_url: str
    host: Host
    # The forms of reasoning that answers have shown, by base URL.
    forms: ReasoningForms
    table: UpstreamTable | None = None
    # The keys of its `key_env`; None: it is called with the request's key.
    keys: KeyPool | None = None
    breaker: Breaker | None = None
    # Whether it has sent a structured call: then it parses its model's markup.
    has_sent_calls: bool = False

    @classmethod
    def from_settings(cls, config: ProxyConfig, forms: ReasoningForms) -> "Upstream":
        base_url = config.upstream_base_url.rstrip("/")
        host = hosts.choose(config.upstream_host, base_url)
        # A gateway of unknown kind is called by the name of what it leads to.
        name = "DeepSeek" if host in (hosts.DEEPSEEK, hosts.UNKNOWN) else urlsplit(base_url).hostname or base_url
        if config.host_options:
            host = host._replace(options=config.host_options)
        return cls(name, "--base-url", base_url, host, forms)

    @classmethod
    def from_table(cls, name: str, table: UpstreamTable, forms: ReasoningForms, keys: KeyPool | None) -> "Upstream":
        host = hosts.choose(table.host, table.base_url)
        if table.options:
            host = host._replace(options=table.options)
        return cls(name, f"base_url of [upstreams.{name}]", table.base_url, host, forms, table, keys, Breaker())

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
        chat = self.chat_api()
        return with_server_tools(chat) if request.server_tools else chat

    def chat_api(self) -> UpstreamApi:
        """Its chat completions API, in the form that its answers have shown."""
        known = self.forms.get(self.base_url) if self.host.is_learning else None
        return self._apis.get(known) or self._apis[None]

    @property
    def strict_chat_api(self) -> UpstreamApi:
        """The same in DeepSeek's own form, if the host is not known to have another."""
        return self._apis[_CONTENT if self.host.is_learning else None]

    @cached_property
    def _apis(self) -> Mapping[str | None, UpstreamApi]:
        """By the form that its answers have shown; None: that of the host."""
        apis: dict[str | None, UpstreamApi] = {None: chat_api_for(self.host)}
        return apis | {form.value: chat_api_for(_with_form(self.host, form)) for form in ReasoningForm}

    @property
    def runs_server_tools(self) -> bool:
        """Whether it gets tools that DeepSeek runs itself: DeepSeek does, and a host of unknown kind."""
        return self.chat_api().host.runs_server_tools

    @property
    def may_write_calls(self) -> bool:
        """Whether its answers may have calls in the model's own markup: not DeepSeek, and no structured call so far."""
        return not self.has_sent_calls and self.host.name != hosts.DEEPSEEK.name

    def record_structured_call(self) -> None:
        self.has_sent_calls = True

    def learn(self, reply: Reply, *, has_thinking: bool = True, was_transcript: bool = False) -> None:
        """Learn the form of the reasoning in an answer with thinking or without; no effect if the host is known.

        An answer to a transcript means that the upstream insists on `reasoning_content`, DeepSeek's own form.
        """
        if not self.host.is_learning:
            return
        if was_transcript and not self.chat_api().host.requires_reasoning:
            self._learn(ReasoningForm.CONTENT, is_sure=True)
        known, is_confirmed = self.forms.get(self.base_url), self.forms.is_confirmed(self.base_url)
        # Most answers teach nothing: they are as the last one was.
        if known == _CONTENT and is_confirmed and not reply.other_reasoning_names:
            return
        if (form := _form_of(reply, has_thinking)) in _FIELDS:
            self._learn(form, is_sure=known not in _FIELD_NAMES or not is_confirmed)
        elif form is not None and known not in _FIELD_NAMES:
            is_first_silence = form is ReasoningForm.NONE and known is None
            self._learn(form, is_sure=is_first_silence or not self.host.requires_reasoning)

    def _learn(self, form: ReasoningForm, *, is_sure: bool) -> None:
        self.forms.learn(self.base_url, form.value, is_sure=is_sure)

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


def _form_of(reply: Reply, has_thinking: bool) -> ReasoningForm | None:
    """The form of the reasoning in an answer; None if it is no evidence of any."""
    names, message = reply.other_reasoning_names, reply.message()
    if ReasoningForm.DETAILS.value in names:
        return ReasoningForm.DETAILS
    if names and not reply.has_mixed_names:
        return ReasoningForm.THINK if names == (ReasoningForm.THINK.value,) else ReasoningForm.REASONING
    if message.reasoning:
        return ReasoningForm.CONTENT
    if not has_thinking or reply.has_empty_reasoning():
        return None
    is_text = isinstance(message.content, str)
    return ReasoningForm.THINK if is_text and begins_with_block(str(message.content)) else ReasoningForm.NONE


def _with_form(host: Host, form: ReasoningForm) -> Host:
    """The host with a form; only DeepSeek's own makes an upstream of unknown kind as strict and able as DeepSeek.

    An upstream that has never sent reasoning gets no fillers. If it has sent `reasoning_content` before, its absence
    means no reasoning.
    """
    if form is ReasoningForm.NONE:
        return host._replace(requires_reasoning=False)
    if form is host.form:
        return host._replace(silence_means_no_thinking=True)
    return host._replace(form=form, requires_reasoning=False, runs_server_tools=False)


@lru_cache(64)
def _destination(base_url: str, path: str, name: str, setting: str) -> Destination:
    """The same object for the same call, so that its URL is hashed once."""
    return Destination(base_url + path, name, setting)


class Target(NamedTuple):
    """An upstream that serves a model, and what it calls the model.

    `lease` is a key of its `key_env`; without one it is called with the key of the request (see `ClientRequest`).
    """

    upstream: Upstream
    model: str
    lease: KeyLease | None = None


class RoutedChat(NamedTuple):
    """A chat to find an upstream for; `can_spend`: its caller may spend the keys of `key_env`."""

    digest: bytes
    caller: bytes = b""
    can_spend: bool = True
    max_tokens: object = None

    def kind(self, model: str) -> RequestKind:
        """The kind of its requests; `model` is the upstream's name of the model."""
        return RequestKind(self.caller, model, self.max_tokens)


class ChatRoute(NamedTuple):
    """Where a chat was answered last, and the digest of the owner's key that was used for it."""

    upstream: str
    key_digest: str | None


class Upstreams:
    """The upstreams of a configuration. Called by any thread.

    The lock protects `_routes`, which the next configuration takes over.
    """

    def __init__(
        self,
        config: ProxyConfig,
        forms: ReasoningForms,
        limits: CallLimits,
        former: "Upstreams | None" = None,
        *,
        has_held_key: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._limits = limits
        self._tables = config.upstreams
        # The upstream of the settings; None if there are tables [upstreams].
        self.only = None if config.upstreams else Upstream.from_settings(config, forms)
        self._all = {
            name: Upstream.from_table(name, table, forms, _keys(name, table, environment, has_held_key=has_held_key))
            for name, table in config.upstreams.items()
        }
        self._lock: threading.Lock = threading.Lock() if former is None else former._lock
        self._routes: OrderedDict[bytes, ChatRoute] = OrderedDict() if former is None else former._routes

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

    def serving(self, model: str) -> list[Target]:
        """The upstreams that serve a model, in the order of the tables."""
        if self.only is not None:
            return [Target(self.only, model)]
        return [Target(self._all[name], sent) for name, sent in serving(model, self._tables).items()]

    def candidates(
        self, model: str, chat: RoutedChat, is_able: Callable[[Target], bool] = lambda target: True
    ) -> list[Target]:
        """The upstreams that serve a model, in the order in which they are asked for this chat.

        Among the ready upstreams, those that can run the request's tools come first.
        """
        found = self.serving(model)
        found = [target for target in found if chat.can_spend or target.upstream.keys is None]
        route = self.route(chat.digest)
        own = route.upstream if route is not None else ""

        def rank(target: Target) -> tuple[bool, bool, bool, bool, int, float]:
            upstream, table = target.upstream, target.upstream.table
            assert table is not None
            is_full = not self._limits.of(upstream.limit_name(target.model)).has_room(chat.caller)
            drawn = _draw(chat.digest, upstream.name) / table.weight
            is_ready = upstream.is_ready_for(chat.kind(target.model))
            return not is_ready, not is_able(target), upstream.name != own, is_full, table.priority, drawn

        return sorted(found, key=rank)

    def route(self, chat: bytes) -> ChatRoute | None:
        with self._lock:
            return self._routes.get(chat)

    def record_route(self, chat: bytes, route: ChatRoute) -> None:
        with self._lock:
            self._routes[chat] = route
            self._routes.move_to_end(chat)
            if len(self._routes) > _MOST_CHATS:
                self._routes.popitem(last=False)


def _draw(chat: bytes, name: str) -> float:
    """An exponentially distributed number.

    Divided by its weight, an upstream's share of smallest values is proportional to the weight.
    """
    # Imported late: without tables nothing here needs OpenSSL.
    import hashlib

    number = int.from_bytes(hashlib.sha256(chat + name.encode()).digest()[:8])
    return -math.log((number + 1) / (2**64 + 1))


def _keys(name: str, table: UpstreamTable, environment: Mapping[str, str], *, has_held_key: bool) -> KeyPool | None:
    """The keys of `key_env`, whose variables may hold several each; None: the request's key is used. Empty: no call."""
    if not table.key_env:
        host = hosts.choose(table.host, table.base_url)
        if not has_held_key or host in (hosts.DEEPSEEK, hosts.UNKNOWN):
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


class FoundTargets(NamedTuple):
    """The upstreams that a chat may be sent to, in their order."""

    targets: list[Target]
    chat: RoutedChat


def find_targets(client: ClientRequest, conversation: bytes, upstreams: Upstreams) -> FoundTargets:
    """The upstreams of the tables for a request of this chat; raises a ProxyError if none can serve it."""
    chat = client.chat
    # Imported late: without tables nothing here needs OpenSSL.
    import hashlib

    upstreams.check(chat.model, client.spend_refusal)
    digest = hashlib.sha256(conversation + chat.model.encode("utf-8", "surrogatepass")).digest()
    max_tokens = chat.params.get("max_tokens")
    routed = RoutedChat(digest, client.namespace, client.spend_refusal is None, max_tokens)
    if not (chat.server_tools or server_tools.is_forced(chat)):
        return FoundTargets(upstreams.candidates(chat.model, routed), routed)
    found = upstreams.candidates(chat.model, routed, lambda target: target.upstream.runs_server_tools)
    if server_tools.is_forced(chat):
        found = [target for target in found if target.upstream.runs_server_tools]
        if not found:
            raise server_tools.cannot_force()
    return FoundTargets(found, routed)
