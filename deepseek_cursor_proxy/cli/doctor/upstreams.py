"""The way to one upstream: its name, the connection, an outbound proxy, TLS; then its clock, keys, balance and models.

The connection is opened by the code that the proxy itself uses, so the environment counts as it does there. A key goes
nowhere but where the proxy would send it: none is sent while the settings have a mistake.
"""

import contextlib
import dataclasses
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.config import ProxyConfig, https_proxy
from deepseek_cursor_proxy.config.access_keys import why_not_sendable
from deepseek_cursor_proxy.config.upstreams import serving
from deepseek_cursor_proxy.deepseek import hosts, model_names, model_resolver
from deepseek_cursor_proxy.errors import ProxyError, StartupError, UpstreamTimeout
from deepseek_cursor_proxy.json_codec import as_list, as_object, decode_upstream_json
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream.client import UpstreamClient
from deepseek_cursor_proxy.upstream.connect import Connector
from deepseek_cursor_proxy.upstream.destination import Destination, Origin
from deepseek_cursor_proxy.usage import balance

# A healthy upstream answers in a fraction of these, and all checks together shall take seconds.
_CONNECT_SECONDS = 4.0
_ANSWER_SECONDS = 4.0
# Nothing is refused for want of a key before it is asked; an upstream answers 401, and its clock is known.
_NO_KEY = "none"
_MAX_LIST_BYTES = 4 * 1024 * 1024
_MOST_KEYS = 8
_STATUS_PAGE = "https://status.deepseek.com"


class NamedKey(NamedTuple):
    """A key, and the variable that holds it; no variable if it was typed."""

    variable: str
    key: str


class Upstream(NamedTuple):
    """An upstream as it is checked: `label` is empty if it is the only one; `models` are its names for ours."""

    label: str
    base_url: str
    # In the words of the settings.
    setting: str
    keys: tuple[NamedKey, ...] = ()
    # Variables that hold no key; and why none is tried, if there is none.
    empty_variables: tuple[str, ...] = ()
    why_no_key: str = ""
    models: tuple[str, ...] = ()

    @property
    def origin(self) -> Origin:
        return Destination(self.base_url).origin

    def without_keys(self, why: str) -> "Upstream":
        return self._replace(keys=(), empty_variables=(), why_no_key=why)


def is_usable(key: NamedKey, config: ProxyConfig) -> bool:
    """Whether a key may be tried: that of DEEPSEEK_API_KEY at another host only if the proxy itself would send it."""
    return (
        not key.variable
        or bool(config.access_keys or config.upstreams)
        or _is_deepseeks(config.upstream_host, config.upstream_base_url)
    )


def _is_deepseeks(host: str, base_url: str) -> bool:
    return hosts.choose(host, base_url) in (hosts.DEEPSEEK, hosts.UNKNOWN)


def key_hosts(config: ProxyConfig) -> list[str]:
    """The hosts that a typed key is for; none if every upstream has keys of its own."""
    tables = [each for each in config.upstreams.values() if not each.key_env]
    urls = [each.base_url for each in tables if _is_deepseeks(each.host, each.base_url)]
    urls = urls if config.upstreams else [config.upstream_base_url]
    return list(dict.fromkeys(Destination(url).origin.host for url in urls))


def list_upstreams(config: ProxyConfig, key: NamedKey | None, environment: Mapping[str, str]) -> list[Upstream]:
    """Every upstream that the proxy may ask, with the key that it would be asked with."""
    own: dict[str, Any] = {"why_no_key": "no key is known here"}
    if key is not None:
        own = {"keys": (key,)} if is_usable(key, config) else {"why_no_key": f"{HELD_KEY} is for DeepSeek alone"}
    elif environment.get(HELD_KEY, "").strip():
        own = {"empty_variables": (HELD_KEY,)}
    if not config.upstreams:
        return [Upstream("", config.upstream_base_url, "--base-url", models=_models_of(config), **own)]
    served = serving(config.upstream_model, config.upstreams)
    found = []
    for name, table in config.upstreams.items():
        names = (*filter(None, [served.get(name)]), *table.models.values())
        models = tuple(dict.fromkeys(each for each in names if not each.endswith("*")))
        upstream = Upstream(name, table.base_url, f"base_url of [upstreams.{name}]", models=models)
        if table.key_env:
            keys, empty = _keys_of(table.key_env, environment)
            found.append(upstream._replace(keys=keys, empty_variables=empty))
        elif _is_deepseeks(table.host, table.base_url):
            found.append(upstream._replace(**own))
        else:
            found.append(upstream._replace(why_no_key="it is asked with the client's key, which is not known here"))
    return found


def _models_of(config: ProxyConfig) -> tuple[str, ...]:
    """The models that are configured, under the names that DeepSeek lists."""
    targets = (model_resolver.resolve(each, config).model for each in config.models.values())
    return tuple(dict.fromkeys(map(model_names.model_for_limit, (config.upstream_model, *targets))))


def _keys_of(
    variables: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[tuple[NamedKey, ...], tuple[str, ...]]:
    """The keys in these variables, of which each may hold several, and the variables without any."""
    keys, empty = [], []
    for variable in variables:
        given = [each.strip() for each in environment.get(variable, "").split(",")]
        found = [each for each in given if not why_not_sendable(each)]
        keys += [NamedKey(variable, each) for each in found]
        empty += [] if found else [variable]
    return tuple(keys[:_MOST_KEYS]), tuple(empty)


# Looking …


class Failure(NamedTuple):
    """The step that failed, what is wrong, and what to do."""

    step: str
    problem: str
    remedy: str


class KeyAnswer(NamedTuple):
    """What the upstream answers to a key: a status, or no answer; models if it lists some."""

    variable: str
    status: int | None
    models: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class UpstreamFacts:
    """`clock_seconds` is by how much the upstream's clock is ahead of ours; `via` the outbound proxy."""

    failure: Failure | None = None
    via: str = ""
    seconds: float = 0.0
    clock_seconds: float | None = None
    keys: tuple[KeyAnswer, ...] = ()
    account: balance.Account | None = None


def look(upstream: Upstream, config: ProxyConfig, environment: Mapping[str, str]) -> UpstreamFacts:
    """Go all the way to the upstream, as far as that leads."""
    config = dataclasses.replace(
        config,
        connect_timeout=min(config.connect_timeout, _CONNECT_SECONDS),
        request_timeout=min(config.request_timeout, _ANSWER_SECONDS),
        retry_budget=0,
    )
    started = time.monotonic()
    try:
        Connector(config, environment).open(upstream.origin, None).close()
    except (OSError, ValueError, ProxyError) as error:
        return UpstreamFacts(explain(error, upstream))
    facts = UpstreamFacts(via=_outbound_proxy(upstream, config, environment), seconds=time.monotonic() - started)
    with closing(UpstreamClient(config)) as client:
        answers = [_ask(client, upstream, each) for each in upstream.keys or (NamedKey("", _NO_KEY),)]
        facts = dataclasses.replace(
            facts,
            failure=next((each.failure for each in answers if each.failure is not None), None),
            clock_seconds=next((each.clock_seconds for each in answers if each.clock_seconds is not None), None),
        )
        if upstream.keys:
            account = _account(client, upstream) if answers[0].key.status == 200 else None
            facts = dataclasses.replace(facts, keys=tuple(each.key for each in answers), account=account)
    return facts


class _Answer(NamedTuple):
    key: KeyAnswer
    clock_seconds: float | None = None
    failure: Failure | None = None


def _ask(client: UpstreamClient, upstream: Upstream, key: NamedKey) -> _Answer:
    destination = Destination(f"{upstream.base_url}/models", setting=upstream.setting, method="GET")
    try:
        with closing(client.send_to(destination, b"", key.key, None)) as response:
            clock = _clock_seconds(response.headers.get("date", ""))
            models = None
            if response.status == 200:
                with contextlib.suppress(ValueError):
                    models = _model_names(decode_upstream_json(response.read(_MAX_LIST_BYTES)))
            return _Answer(KeyAnswer(key.variable, response.status, models), clock)
    except UpstreamTimeout:
        text = f"{upstream.origin.host} did not answer within {_ANSWER_SECONDS:.0f} s"
        remedy = f"try again in a moment; {_STATUS_PAGE} says how DeepSeek is"
        return _Answer(KeyAnswer(key.variable, None), failure=Failure("answer", text, remedy))
    except ProxyError as error:
        error.hide(key.key)
        return _Answer(KeyAnswer(key.variable, None), failure=Failure("answer", *_split(error.message)))


def _model_names(body: Any) -> tuple[str, ...]:
    entries = (as_object(each) for each in as_list(as_object(body).get("data")))
    return tuple(safe_text(each["id"], 100) for each in entries if isinstance(each.get("id"), str))


def _clock_seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None


def _account(client: UpstreamClient, upstream: Upstream) -> balance.Account | None:
    """The account of the first key; None at another host than DeepSeek, which alone has one."""
    destination = Destination(upstream.base_url + balance.PATH, method="GET")
    with contextlib.suppress(ProxyError, ValueError):
        with closing(client.send(destination, b"", upstream.keys[0].key, None)) as response:
            return balance.read_account(as_object(decode_upstream_json(response.read())))
    return None


def _outbound_proxy(upstream: Upstream, config: ProxyConfig, environment: Mapping[str, str]) -> str:
    if upstream.origin.scheme != "https" or config.https_proxy == "off":
        return ""
    try:
        return str(https_proxy.for_host(upstream.origin.host, upstream.origin.port, environment) or "")
    except StartupError:
        return ""


def explain(error: Exception, upstream: Upstream) -> Failure:
    """The step at which opening a connection failed, and the remedy."""
    host, port = upstream.origin.host, upstream.origin.port
    if isinstance(error, ProxyError):
        # Of an outbound proxy, or of a trust store that is empty; both say what to do.
        step = "outbound proxy" if error.message.startswith(("The proxy ", "config: ")) else "TLS"
        return Failure(step, *_split(error.message))
    if isinstance(error, socket.gaierror):
        remedy = f"check the network, DNS and {upstream.setting}; behind a company's proxy set HTTPS_PROXY"
        return Failure("name (DNS)", f"{host} is not found ({error.strerror or 'no such name'})", remedy)
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure("TLS", f"the certificate of {host} is not to be trusted ({error.verify_message})", _tls(error))
    if isinstance(error, ssl.SSLError):
        remedy = f"check {upstream.setting}, and what stands between you and {host}"
        return Failure("TLS", f"no secure connection to {host} ({error.reason or error})", remedy)
    reason = "no connection in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", "") or error
    remedy = f"check the network, a firewall and {upstream.setting}; behind a company's proxy set HTTPS_PROXY"
    return Failure("connection", f"{host}:{port} cannot be reached ({reason})", remedy)


def _tls(error: ssl.SSLCertVerificationError) -> str:
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return "check the clock of this machine: certificates are valid for a time"
    return "name the certificate of your network's own authority in SSL_CERT_FILE, or ask who reads along"


def _split(message: str) -> tuple[str, str]:
    """The problem and the remedy of an error's message, which come in this order, as sentences."""
    problem, _, remedy = message.partition(". ")
    remedy = remedy.rstrip(".") or "try again in a moment"
    return problem.rstrip("."), remedy[0].lower() + remedy[1:]
