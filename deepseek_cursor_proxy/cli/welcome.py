"""The text that `serve` prints at its start: what to enter in a client, where the dashboard is, and who is served.

What to enter in Cursor is printed only with a public address, because Cursor cannot use another one.
"""

import os
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy import __version__, proxy
from deepseek_cursor_proxy.access import HELD_KEY, Access
from deepseek_cursor_proxy.cli.parser import program_name
from deepseek_cursor_proxy.config import ProxyConfig, https_proxy
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.values import is_loopback, lacks_home
from deepseek_cursor_proxy.deepseek.model_names import MODELS, has_own_names


class Addresses(NamedTuple):
    """Where the proxy can be reached: its port, the tunnel, and the dashboard by its URL and the link with its key."""

    port: int
    public_url: str | None = None
    dashboard: tuple[str, str] | None = None


def welcome_text(config: ProxyConfig, config_path: Path, addresses: Addresses, access: Access) -> str:
    """The text printed at the start: what to enter in a client, the dashboard, and who is served."""
    settings = "at their defaults" if lacks_home(config_path) else config_path
    is_in_memory = str(config.reasoning_content_path) == ":memory:"
    store = "in memory, until the proxy stops" if is_in_memory else str(config.reasoning_content_path)
    if config.store and proxy.has("redis"):
        # Imported late: most proxies share nothing.
        from deepseek_cursor_proxy.features.redis.connection import RedisAddress

        store += f", shared on {RedisAddress.parse(config.store)}"
    # public_hosts names a tunnel that we did not open.
    own_hosts = (f"https://{host}" for host in config.public_hosts if not host.startswith("*"))
    public_url = addresses.public_url or next(own_hosts, None)
    lines = [
        *_client_lines(config, addresses.port, access, public_url),
        *_dashboard_lines(config, addresses.dashboard),
        f"  Settings                   {settings}",
        f"  Reasoning                  {store}",
        *_upstream_lines(config),
    ]
    if public_url is None:
        lines.append("Cursor calls from its own servers and needs a public URL: restart with --tunnel.")
    lines += [*access_lines(config, access), "Stop with Ctrl-C."]
    return "\n".join(lines)


def _client_lines(config: ProxyConfig, port: int, access: Access, public_url: str | None) -> Iterator[str]:
    """What to enter in Cursor if it can reach the proxy, else in other clients."""
    running, local = f"deepseek-cursor-proxy {__version__} is running.", local_url(config.host, port)
    key = "a DeepSeek key that is in access_keys" if config.served_keys else "your DeepSeek key (sk-…)"
    if access.held_key is not None:
        key = "one of your access keys"
    # Typed in another terminal, while this one shows the proxy.
    program = program_name(anywhere=True)
    if public_url is not None:
        yield f"{running} In Cursor: Settings > Models, then"
        yield f"  Override OpenAI Base URL   {public_url}/v1"
        yield f"  OpenAI API Key             {key}"
        yield f"  Model to add and choose    {_model(config)}"
        yield f"  Another agent              {program} run claude"
        return
    yield f"{running} In another terminal:"
    yield f"  Start an agent             {program} run claude"
    yield f"  Configure it for good      {program} setup"
    yield f"  OpenAI base URL            {local}/v1   (Codex and others)"
    yield f"  Anthropic base URL         {local}   (Claude Code)"
    if config.host in ("0.0.0.0", "::"):
        yield f"  from another machine       the address of this one in place of {urlsplit(local).hostname}"
    yield f"  API key                    {key}"
    yield f"  Model                      {_model(config)}"


def _model(config: ProxyConfig) -> str:
    """The model of the settings; with the default, both, in the order in which `setup` prefers them."""
    pro, flash = MODELS
    both = config.upstream_model == pro and not has_own_names(config)
    return f"{flash}, or {pro} for more money" if both else config.upstream_model


def _dashboard_lines(config: ProxyConfig, dashboard: tuple[str, str] | None) -> Iterator[str]:
    if dashboard is None:
        return
    url, link = dashboard
    # The link has the key, and a log may have other readers than this terminal.
    shown = link if sys.stdout.isatty() else f"{url}/ (`{program_name(anywhere=True)} dashboard` opens it)"
    yield f"  Dashboard                  {shown}"
    port = int(url.rpartition(":")[2])
    if port != config.admin_port:
        yield f"Port {config.admin_port} is in use, so the dashboard is on {port} (see admin_port)."
    if not is_loopback(config.admin_host):
        yield (
            f"The dashboard and its API are open to your network at {url}, unencrypted: anyone with the key can "
            "watch all requests. Set admin_host to localhost unless you mean it."
        )
    if config.admin_key is not None and config.admin_key.is_guessable:
        yield f"admin_key is short enough to guess: {_better_key()}."


def _better_key() -> str:
    return f"`{program_name(anywhere=True)} access-key --new` makes a better one"


def _upstream_lines(config: ProxyConfig) -> Iterator[str]:
    """The upstreams in the order in which they are asked, and HTTPS_PROXY, which is easily forgotten."""
    tables = config.upstreams
    names = sorted(tables, key=lambda name: tables[name].priority)
    if groups := [" and ".join(group) for _, group in groupby(names, lambda name: tables[name].priority)]:
        yield f"Upstreams: {', then '.join(groups)}."
    urls = [url for url in map(urlsplit, config.base_urls) if url.scheme == "https"]
    found = [https_proxy.for_host(url.hostname or "", url.port or 443, os.environ) for url in urls]
    for address in dict.fromkeys(str(each) for each in found if each is not None):
        yield f"DeepSeek is called through the proxy {address} (HTTPS_PROXY)."


def access_lines(config: ProxyConfig, access: Access) -> Iterator[str]:
    if config.served_keys:
        tables = "access_keys and [keys]" if config.keys else "access_keys"
        yield f"Only the keys named in {tables} are served ({len(config.served_keys)})."
        if access.held_key is not None:
            yield f"DeepSeek is called with the key in {HELD_KEY}, which no client ever sees."
        if any(key.is_guessable for key in config.served_keys):
            yield f"An access key is short enough to guess: {_better_key()}."
    elif access.can_pin:
        yield "The first key that DeepSeek accepts will be the only one served until the proxy stops."
    yield from _owner_key_lines(config, access)
    if not config.served_keys and os.environ.get(HELD_KEY):
        yield f"{HELD_KEY} is not used here, because each client sends its own key; with access_keys it would be."


def _owner_key_lines(config: ProxyConfig, access: Access) -> Iterator[str]:
    """Lines on which requests spend a key of the owner, if there is one to spend."""
    tables = ["[passthrough]"] if config.passthrough else []
    tables += [f"[upstreams.{name}]" for name, table in config.upstreams.items() if table.key_env]
    if tables and not config.served_keys:
        which = " and ".join(tables)
        are = "is" if len(tables) == 1 else "are"
        yield f"{which} {are} for the first key that DeepSeek accepts, so ask a DeepSeek model first."
    if tables or access.held_key is not None:
        tunnel = ["the tunnel"] if config.tunnel_program else []
        *names, last = ["an IP address", "localhost", *config.public_hosts, *tunnel]
        where = f"{', '.join(names)} or {last}"
        yield f"Your keys are spent only for requests to {where}; add other names to public_hosts."
