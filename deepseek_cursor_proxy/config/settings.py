"""Every setting of the proxy, declared once: the fields of ProxyConfig.

To change a default, edit its field; limits and timeouts that users never need are constants (`_…SECONDS…`, `_MAX_…`) of
the module that applies them, or `constant(…)` where tests give other values. To add a setting, add a field with
`setting(default, help)`; its command-line flag, environment variable, TOML key, `config show` and `--help` come from
it, and so does the table in .github/docs/settings.md, which a test compares. Code reads the value as `config.<field>`.
Tables of models are fields with `table(…)` and have neither flag nor variable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.config.access_keys import AccessKey, access_key
from deepseek_cursor_proxy.config.declaration import common, constant, parse_items, setting, switch_word, table
from deepseek_cursor_proxy.config.upstreams import HOSTS, UpstreamTable, upstream_table
from deepseek_cursor_proxy.config.values import (
    PassthroughRoute,
    base_url,
    is_loopback,
    model_name,
    passthrough_route,
    price_entry,
    public_host,
    raw_field,
    store_url,
    tunnel_address,
)

if TYPE_CHECKING:
    from deepseek_cursor_proxy.config.named_keys import KeyGroup, NamedKey

HOME = Path("~/.deepseek-cursor-proxy")
CONFIG_PATH = HOME / "config.toml"


def _seconds(default: float, help: str, *, at_least: float = 0.1, group: str = "") -> Any:
    """A wait of at most a day: timers of the system overflow beyond some weeks (on Windows first)."""
    return setting(default, help, at_least=at_least, at_most=24 * 3600, group=group)


def _amount(default: int, help: str, *, needs_restart: bool = False) -> Any:
    """A number from 1 to 10**12: more bytes than any machine has, and exact as a float."""
    return setting(default, help, at_least=1, at_most=10**12, needs_restart=needs_restart)


# Imported late: most proxies name no keys, and start faster without.
def _named_key(key: str, value: Any, origin: str) -> "NamedKey":
    from deepseek_cursor_proxy.config.named_keys import named_key

    return named_key(key, value, origin)


def _key_group(key: str, value: Any, origin: str) -> "KeyGroup":
    from deepseek_cursor_proxy.config.named_keys import key_group

    return key_group(key, value, origin)


_AUTO, _CACHE, _STRATEGIES = ("auto", "on", "off"), ("off", "ask", "on"), ("recover", "placeholder", "reject")
_STORE = "stored reasoning and responses"


# Each method that dataclass writes for so many fields costs every start a third of a millisecond.
@dataclass(frozen=True, eq=False, repr=False, match_args=False)
class ProxyConfig:
    """The settings of one proxy. Comments give the reason for a default."""

    host: str = common(
        "127.0.0.1", "address to listen on; not loopback: open to your network", needs_restart=True, group="the proxy"
    )
    port: int = common(9000, "port to listen on; 0 takes any free one", at_least=0, at_most=65535, needs_restart=True)
    shutdown_grace: float = _seconds(5.0, "seconds that running answers get when the proxy stops", at_least=0)
    # DeepSeek's own limit.
    max_request_body_bytes: int = _amount(48 * 1024 * 1024, "largest request body, unpacked")
    upstream_base_url: str = common(
        "https://api.deepseek.com", "URL of DeepSeek's API", key="base_url", check=base_url, group="model"
    )
    # `host` alone is the address that the proxy listens on.
    upstream_host: str = setting("auto", "API dialect of base_url; auto: by name, else by its answers", choices=HOSTS)
    upstream_model: str = common("deepseek-v4-pro", "default model, also for names DeepSeek does not know", key="model")
    subagent_model: str | None = common(None, "model for sub-agents and small requests of Claude Code and Codex")
    thinking: str = setting(
        "enabled", "think, unless the request says otherwise", choices=("enabled", "disabled"), group="reasoning"
    )
    reasoning_effort: str = common(
        "high", "default reasoning effort", choices=("minimal", "low", "medium", "high", "xhigh", "max", "ultra")
    )
    display_reasoning: str | bool = common(
        "auto", "show thinking in the answer; auto: only where text alone is shown", choices=_AUTO, switch=True
    )
    collapsible_reasoning: bool = setting(True, "show thinking as a collapsible <details> block; off: as <think> text")
    missing_reasoning_strategy: str = setting(
        "recover", "if a tool turn lost its reasoning: replay as text, placeholder, or 409", choices=_STRATEGIES
    )
    repair_turns: str = setting("on", "turn calls written as text into calls, retry empty turns", choices=("on", "off"))
    pictures: str = setting(
        "name", "pictures for a model without vision: send their names, or let Flash answer", choices=("name", "flash")
    )
    request_timeout: float = _seconds(300.0, "seconds of silence after which a call fails", group="calls to DeepSeek")
    allow_plain_http_upstream: bool = setting(
        False, "DANGER: let base_url be plain http on another machine; your key then crosses the network in clear"
    )
    reasoning_content_path: Path = setting(
        HOME / "reasoning_content.sqlite3",
        "file of the stored reasoning; :memory: for none",
        needs_restart=True,
        group=_STORE,
    )
    store: str | None = setting(
        None, "Redis or Valkey that proxies share: redis://host", check=store_url, secret=True, needs_restart=True
    )
    reasoning_cache_max_age_seconds: int = _amount(
        30 * 24 * 3600, "delete a reasoning this many seconds after its last use", needs_restart=True
    )
    reasoning_cache_max_rows: int = _amount(100_000, "most reasonings kept; unused ones go first", needs_restart=True)
    durability: str = setting(
        "normal", "full: turns survive power loss, but wait", choices=("normal", "full"), needs_restart=True
    )
    response_cache: str = setting(
        "ask", "answer repeated requests without a call: never, if the request asks, or always", choices=_CACHE
    )
    record: str = setting("sessions", "record requests to a session's URL, or all", choices=("sessions", "all"))
    tunnel: str | bool | None = common(
        None,
        "open a public https address with this program; on: ngrok if it has a token, else cloudflared",
        choices=("on", "off", "ngrok", "cloudflared"),
        switch=True,
        needs_restart=True,
        group="who may use it",
    )
    tunnel_url: str | None = setting(None, "reserved address of the tunnel", check=tunnel_address, needs_restart=True)
    ngrok: bool = setting(False, "the same as --tunnel ngrok", needs_restart=True)
    access_keys: tuple[AccessKey, ...] = common(
        (), "the only keys that are served, each as clients send it or as its sha256: digest", item=access_key
    )
    public_hosts: tuple[str, ...] = setting((), "host names of your own tunnel or reverse proxy", item=public_host)
    admin_port: int = setting(
        9001,
        "port of dashboard and metrics, on this machine only; if it is busy, the next free one; 0: off",
        at_least=0,
        at_most=65535,
        needs_restart=True,
        group="dashboard, metrics and cost",
    )
    admin_host: str = setting(
        "localhost", "DANGER: serve dashboard and metrics here, unencrypted, to anyone with the key", needs_restart=True
    )
    admin_key: AccessKey | None = setting(None, "key of the dashboard, or its sha256: digest (default: in admin.key)")
    metrics_key: AccessKey | None = setting(None, "another key, for /metrics alone")
    currency: str = setting("USD", "currency of your DeepSeek account, for estimated costs", choices=("USD", "CNY"))
    verbose: bool = setting(False, "also print request and answer bodies (never keys)", group="log, traces and other")
    cors: bool = setting(False, "let web pages of any origin call the proxy")
    trace_dir: Path | None = common(None, "write one private JSON file per request into this directory")
    # It takes a second to read and stays in memory, so a reload does not read it again.
    tokenizer: Path | None = setting(None, "DeepSeek's tokenizer.json, to count tokens exactly", needs_restart=True)
    # Values that suit every machine.
    # To reach DeepSeek: name, connection and certificate together.
    connect_timeout: float = constant(10.0)
    # How long to retry a busy or broken DeepSeek: enough for a hiccup, and the user sees no delay.
    retry_budget: float = constant(3.0)
    # Calls to a model at once: more than an editor with many agents makes, and fewer than DeepSeek allows an account
    # (500 to V4-Pro). A further one waits for a slot: tunnels give up on a silent answer after 100 seconds, and a 429
    # before that says why.
    max_upstream_calls: int = constant(480)
    queue_timeout: float = constant(30.0)
    # In DeepSeek's queue, where keep-alives are not silence: DeepSeek closes such a connection after ten minutes.
    max_queue_seconds: float = constant(630.0)
    # Silence after which the client gets an empty event, so that it keeps waiting.
    heartbeat_interval: float = constant(15.0)
    # Clients at once; an editor uses a handful.
    max_connections: int = constant(1024)
    # Clients: the head of a request, its body besides what body_rate allows, an unused connection, an unread answer.
    # A body of 48 MiB may take a quarter of an hour, one that does not come ten seconds: slower than a bad mobile link
    # is an attack. Clients rely on 15 seconds of an unused connection.
    header_timeout: float = constant(10.0)
    body_timeout: float = constant(10.0)
    # Bytes of a body that earn the client another second.
    body_rate: int = constant(50_000)
    idle_timeout: float = constant(20.0)
    write_timeout: float = constant(30.0)
    # Responses generated in the background at once, and those that wait: each holds two descriptors from the start.
    background_workers: int = constant(4)
    background_queue: int = constant(64)
    models: Mapping[str, str] = table(
        "more names for DeepSeek's models; one that ends in * stands for every name with that beginning", model_name
    )
    host_options: Mapping[str, Any] = table(
        "fields added to every request to the upstream, for options that DeepSeek does not have", raw_field
    )
    upstreams: Mapping[str, UpstreamTable] = table(
        "several upstreams in place of base_url; if one fails, the next is called", upstream_table
    )
    prices: Mapping[str, Any] = table(
        "prices of a million tokens, in `currency`, where none is built in or it is wrong; further `holidays`",
        price_entry,
    )
    passthrough: Mapping[str, PassthroughRoute] = table(
        "models whose requests go to another host unchanged, with a key from an environment variable", passthrough_route
    )
    keys: "Mapping[str, NamedKey]" = table(
        "keys with a name and limits, beside access_keys; also in keys.d/*.toml beside this file", _named_key
    )
    groups: "Mapping[str, KeyGroup]" = table("limits of all keys of a group together, beside their own", _key_group)

    def __post_init__(self) -> None:
        given = vars(self)
        paths = ("reasoning_content_path", "trace_dir", "tokenizer")
        values: dict[str, Any] = {name: Path(given[name]) for name in paths if isinstance(given[name], str)}
        values |= {name: switch_word(given[name]) for name in ("display_reasoning", "tunnel")}
        keys = [name for name in ("admin_key", "metrics_key") if given[name] is not None]
        values |= {name: access_key(name, given[name], "ProxyConfig") for name in keys}
        for name, item in (("access_keys", access_key), ("public_hosts", public_host)):
            values[name] = parse_items(name, given[name], "ProxyConfig", item) if given[name] else ()
        # Entries that code gives, as those of the file; one that is parsed already stays.
        for name, parse in ((each.name, each.metadata["entry"]) for each in fields(self) if "entry" in each.metadata):
            table = {each: parse(f"{name}.{each}", value, "ProxyConfig") for each, value in given[name].items()}
            values[name] = MappingProxyType(table)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def most_calls(self, model: str) -> int:
        """The number of calls to a model, or to an upstream with a limit of its own, that may run at once."""
        table = self.upstreams.get(model)
        if table is not None and table.max_calls is not None:
            return table.max_calls
        # DeepSeek allows an account five times as many calls to Flash: 2500.
        return 5 * self.max_upstream_calls if "flash" in model else self.max_upstream_calls

    @property
    def served_keys(self) -> tuple[AccessKey, ...]:
        """The only keys that are served, with a name or without; empty if others are."""
        if not self.keys:
            return self.access_keys
        return (*self.access_keys, *(key for named in self.keys.values() for key in named.keys))

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The base URLs that generations are sent to."""
        if not self.upstreams:
            return (self.upstream_base_url,)
        return tuple(table.base_url for table in self.upstreams.values())

    @property
    def tunnel_program(self) -> str | None:
        """The program that opens a tunnel, `on` for one that can; None for no tunnel."""
        if self.tunnel is None:
            return "ngrok" if self.ngrok else None
        return None if self.tunnel == "off" else str(self.tunnel)

    @property
    def is_exposed(self) -> bool:
        """Whether the settings let other machines reach the proxy."""
        return self.tunnel_program is not None or bool(self.public_hosts) or not is_loopback(self.host)
