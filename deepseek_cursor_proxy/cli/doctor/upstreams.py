"""The way to one upstream: its name, the connection, an outbound proxy, TLS; then its keys, balance and models.

It is asked by the code that the proxy itself uses, so the environment counts as it does there. A key goes nowhere but
where the proxy would send it: none is sent while the settings have a mistake.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli.doctor.subject import Finding, NamedKey, Subject, failed, good, skipped, warning
from deepseek_cursor_proxy.config import ProxyConfig, https_proxy
from deepseek_cursor_proxy.config.access_keys import why_not_sendable
from deepseek_cursor_proxy.config.upstreams import serving
from deepseek_cursor_proxy.deepseek import hosts, model_names, model_resolver
from deepseek_cursor_proxy.errors import ProxyError, UpstreamFailed, UpstreamTimeout
from deepseek_cursor_proxy.json_codec import as_list, as_object, decode_upstream_json
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream.client import Call, UpstreamClient
from deepseek_cursor_proxy.upstream.connections import Destination, Origin

# A healthy upstream answers in a fraction of these, and all checks together must take seconds.
_CONNECT_SECONDS = 4.0
_ANSWER_SECONDS = 4.0
# A call without a key is made as well: the upstream answers it 401.
_NO_KEY = "none"
_MAX_LIST_BYTES = 4 * 1024 * 1024
_MOST_KEYS = 8
_STATUS_PAGE = "https://status.deepseek.com"
UPSTREAM, KEY, BALANCE, MODELS = "upstream", "key", "balance", "models"
_MOST_NAMES = 4
_KEYS_PAGE = "https://platform.deepseek.com/api_keys"
_TOP_UP_PAGE = "https://platform.deepseek.com/top_up"


class CheckedUpstream(NamedTuple):
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

    def name(self, word: str) -> str:
        """The name of a check of this upstream."""
        return f"{word} {self.label}".rstrip()


def is_usable(key: NamedKey, config: ProxyConfig) -> bool:
    """Whether a key may be tried: that of DEEPSEEK_API_KEY at another host only if the proxy itself would send it."""
    return (
        not key.variable
        or bool(config.served_keys or config.upstreams)
        or _is_deepseeks(config.upstream_host, config.upstream_base_url)
    )


def _is_deepseeks(host: str, base_url: str) -> bool:
    return hosts.choose(host, base_url) in (hosts.DEEPSEEK, hosts.UNKNOWN)


def key_hosts(config: ProxyConfig) -> list[str]:
    """The hosts that a typed key is for; none if every upstream has keys of its own."""
    tables = [table for table in config.upstreams.values() if not table.key_env]
    urls = [table.base_url for table in tables if _is_deepseeks(table.host, table.base_url)]
    urls = urls if config.upstreams else [config.upstream_base_url]
    return list(dict.fromkeys(Destination(url).origin.host for url in urls))


def list_upstreams(subject: Subject) -> list[CheckedUpstream]:
    """Every upstream that the proxy may ask, with the key that it would be asked with."""
    config, key, environment = subject.config, subject.key, subject.environment
    own: dict[str, Any] = {"why_no_key": "no key given"}
    if key is not None:
        own = {"keys": (key,)} if is_usable(key, config) else {"why_no_key": f"{HELD_KEY} is sent to DeepSeek only"}
    elif environment.get(HELD_KEY, "").strip():
        own = {"empty_variables": (HELD_KEY,)}
    if config.upstreams:
        found = [_from_table(name, subject, own) for name in config.upstreams]
    else:
        # Under the names that DeepSeek lists.
        targets = (model_resolver.resolve(target, config).model for target in config.models.values())
        models = tuple(dict.fromkeys(map(model_names.model_for_limit, (config.upstream_model, *targets))))
        found = [CheckedUpstream("", config.upstream_base_url, "--base-url", models=models, **own)]
    if subject.settings.faults:
        # A key could go to the wrong place.
        why = "no key is sent anywhere while the settings have a mistake"
        found = [upstream._replace(keys=(), empty_variables=(), why_no_key=why) for upstream in found]
    return found


def _from_table(name: str, subject: Subject, own: Mapping[str, Any]) -> CheckedUpstream:
    """The upstream of a table; `own` says which key it gets if it has none of its own."""
    table = subject.config.upstreams[name]
    served = serving(subject.config.upstream_model, subject.config.upstreams).get(name)
    names = (*filter(None, [served]), *table.models.values())
    models = tuple(dict.fromkeys(name for name in names if not name.endswith("*")))
    upstream = CheckedUpstream(name, table.base_url, f"base_url of [upstreams.{name}]", models=models)
    if not table.key_env and _is_deepseeks(table.host, table.base_url):
        return upstream._replace(**own)
    if not table.key_env:
        return upstream._replace(why_no_key="it is called with the client's key, which doctor does not have")
    keys, empty = [], []
    for variable in table.key_env:
        # Each may hold several.
        given = [part.strip() for part in subject.environment.get(variable, "").split(",")]
        found = [NamedKey(variable, key) for key in given if not why_not_sendable(key)]
        keys += found
        empty += [] if found else [variable]
    return upstream._replace(keys=tuple(keys[:_MOST_KEYS]), empty_variables=tuple(empty))


# The balance of an account at DeepSeek: the answer of `GET /user/balance`, checked …

BALANCE_PATH = "/user/balance"
_MOST_CURRENCIES = 10


class Balance(NamedTuple):
    """An amount in one currency, and of it what was granted and what was paid in; DeepSeek writes them as text."""

    currency: str
    total: str
    granted: str
    topped_up: str


class Account(NamedTuple):
    """Whether it can be used for calls, and its balances."""

    is_available: bool
    balances: tuple[Balance, ...]


def read_account(body: Mapping[str, Any]) -> Account:
    """Parse an answer of `GET /user/balance`. Raises UpstreamFailed if it is not DeepSeek's."""
    infos = [as_object(info) for info in as_list(body.get("balance_infos"))][:_MOST_CURRENCIES]
    if not isinstance(body.get("is_available"), bool) or "balance_infos" not in body:
        raise UpstreamFailed("The answer has no balance_infos; only DeepSeek's API has a balance. Check --base-url.")
    names = ("currency", "total_balance", "granted_balance", "topped_up_balance")
    balances = [Balance(*(safe_text(info.get(name, "?"), 30) for name in names)) for info in infos]
    return Account(body["is_available"], tuple(balances))


# The check …


class KeyAnswer(NamedTuple):
    """What the upstream answers to a key: a status, or a failure; models if it lists some."""

    variable: str
    status: int | None
    models: tuple[str, ...] | None = None
    failure: Finding | None = None


def check(upstream: CheckedUpstream, subject: Subject) -> list[Finding]:
    """Check every step on the way to the upstream, up to the first that fails; the findings in that order."""
    config = dataclasses.replace(
        subject.config,
        connect_timeout=min(subject.config.connect_timeout, _CONNECT_SECONDS),
        request_timeout=min(subject.config.request_timeout, _ANSWER_SECONDS),
        retry_budget=0,
    )
    started = time.monotonic()
    with closing(UpstreamClient(config)) as client:
        answers = [_ask(client, upstream, (upstream.keys or (NamedKey("", _NO_KEY),))[0])]
        seconds, failure = time.monotonic() - started, answers[0].failure
        if failure is None:
            answers += [_ask(client, upstream, key) for key in upstream.keys[1:]]
        account = _account(client, upstream) if upstream.keys and answers[0].status == 200 else None
    return [
        _check_way(upstream, failure, seconds, subject),
        *_check_keys(upstream, failure, answers),
        *_check_account(upstream, account),
        *_check_models(upstream, answers),
    ]


def _ask(client: UpstreamClient, upstream: CheckedUpstream, key: NamedKey) -> KeyAnswer:
    name = upstream.name(UPSTREAM)
    destination = Destination(f"{upstream.base_url}/models", setting=upstream.setting, method="GET")
    models = None
    try:
        with closing(client.send_to(Call(destination, key.key))) as response:
            if response.status == 200:
                with contextlib.suppress(ValueError):
                    body = as_object(decode_upstream_json(response.read(_MAX_LIST_BYTES)))
                    names = (as_object(model).get("id") for model in as_list(body.get("data")))
                    models = tuple(safe_text(name, 100) for name in names if isinstance(name, str))
            return KeyAnswer(key.variable, response.status, models)
    except UpstreamTimeout:
        text = f"{upstream.origin.host} did not answer within {_ANSWER_SECONDS:.0f} s"
        failure = failed(name, text, f"try again in a moment; {_STATUS_PAGE} says how DeepSeek is doing")
    except ProxyError as error:
        error.hide(key.key)
        failure = failed(name, *_split(error.message))
    return KeyAnswer(key.variable, None, failure=failure)


def _account(client: UpstreamClient, upstream: CheckedUpstream) -> Account | None:
    """The account of the first key; None at another host than DeepSeek, which alone has one."""
    destination = Destination(upstream.base_url + BALANCE_PATH, method="GET")
    with contextlib.suppress(ProxyError, ValueError):
        with closing(client.send(Call(destination, upstream.keys[0].key))) as response:
            return read_account(as_object(decode_upstream_json(response.read())))
    return None


def _split(message: str) -> tuple[str, str]:
    """The problem and the remedy of an error's message, which come in this order, as sentences."""
    problem, _, remedy = message.partition(". ")
    remedy = remedy.rstrip(".") or "try again in a moment"
    return problem.rstrip("."), remedy[0].lower() + remedy[1:]


# What it means …


def _check_way(upstream: CheckedUpstream, failure: Finding | None, seconds: float, subject: Subject) -> Finding:
    if failure is not None:
        return failure
    origin = upstream.origin
    via = None
    if origin.scheme == "https":
        via = https_proxy.for_host(origin.host, origin.port, subject.environment)
    by = f", through the proxy {via} (HTTPS_PROXY)" if via else ""
    return good(upstream.name(UPSTREAM), f"{origin.host} answers, in {seconds:.2f} s{by}")


def _check_keys(upstream: CheckedUpstream, failure: Finding | None, answers: Sequence[KeyAnswer]) -> Iterator[Finding]:
    name = upstream.name(KEY)
    for variable in upstream.empty_variables:
        text = f"{variable} holds no key, or one from Anthropic"
        yield failed(name, text, f"set {variable} where the proxy is started")
    if upstream.why_no_key:
        remedy = "set DEEPSEEK_API_KEY, or type it when asked, to have key, balance and models checked"
        yield skipped(name, upstream.why_no_key, remedy)
    if upstream.keys and failure is None:
        yield from (check_key(name, answer) for answer in answers)
    elif upstream.keys:
        yield skipped(name, "not checked, because the upstream does not answer")


def check_key(name: str, answer: KeyAnswer) -> Finding:
    key = f"the key in {answer.variable}" if answer.variable else "the key"
    match answer.status:
        case 401 | 403:
            is_deepseeks = answer.variable in ("", HELD_KEY)
            remedy = f"make a new one at {_KEYS_PAGE}" if is_deepseeks else f"set {answer.variable} to a valid key"
            return failed(name, f"{key} is not accepted ({answer.status})", remedy)
        case 402:
            return failed(name, "the account has no balance (402)", f"top up at {_TOP_UP_PAGE}")
        case 200:
            return good(name, f"{key} is accepted")
        case 404 | 405:
            return skipped(name, f"{key} cannot be checked: this upstream lists no models")
        case 429:
            return warning(name, f"the upstream tells {key} to wait (429)", "try again in a minute")
        case status:
            return warning(name, f"the upstream answers {status} when asked for its models", "try again in a moment")


def _check_account(upstream: CheckedUpstream, account: Account | None) -> Iterator[Finding]:
    if account is None:
        return
    name = upstream.name(BALANCE)
    amounts = ", ".join(f"{amount.total} {amount.currency}" for amount in account.balances) or "no amounts"
    if account.is_available:
        yield good(name, f"the account can be used ({amounts})")
    else:
        yield failed(name, f"the account cannot be used ({amounts})", f"top up at {_TOP_UP_PAGE}")


def _check_models(upstream: CheckedUpstream, answers: Sequence[KeyAnswer]) -> Iterator[Finding]:
    listed = next((answer.models for answer in answers if upstream.keys and answer.models), None)
    if listed is None:
        return
    name, lower = upstream.name(MODELS), {model.lower() for model in listed}
    missing = [model for model in upstream.models if model.lower() not in lower]
    if not missing:
        yield good(name, f"{', '.join(upstream.models[:_MOST_NAMES]) or 'any'}: listed")
        return
    more = ", …" if len(listed) > _MOST_NAMES else ""
    text = f"{', '.join(missing[:_MOST_NAMES])} not in its list: {', '.join(listed[:_MOST_NAMES])}{more}"
    where = f"models of [upstreams.{upstream.label}]" if upstream.label else "model and [models]"
    yield warning(name, text, f"correct {where}, unless the upstream serves more than it lists")
