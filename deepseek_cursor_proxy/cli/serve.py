"""The `serve` command: start store, listeners, tunnel and signals, reload at SIGHUP, stop all in reverse order.

The text at its start says what to enter in a client, where the dashboard is, and who is served. What to enter in Cursor
is printed only with a public address, because Cursor cannot use another one.
"""

import contextlib
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from deepseek_cursor_proxy import __version__, proxy
from deepseek_cursor_proxy.access import HELD_KEY, Access
from deepseek_cursor_proxy.cli.parser import config_path, load, program_name, resolve
from deepseek_cursor_proxy.cli.signals import Signals
from deepseek_cursor_proxy.cli.store import clear, open_store
from deepseek_cursor_proxy.config import ProxyConfig, https_proxy
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS, LoadedConfig, template
from deepseek_cursor_proxy.config.settings import CONFIG_PATH
from deepseek_cursor_proxy.config.values import StoreUrl, expand_home, is_loopback, lacks_home
from deepseek_cursor_proxy.deepseek.model_names import MODELS, has_own_names
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer
from deepseek_cursor_proxy.server.resource_limits import raise_limits
from deepseek_cursor_proxy.storage import private_files
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

if TYPE_CHECKING:
    from deepseek_cursor_proxy.cli.tunnel import Tunnel
    from deepseek_cursor_proxy.features.dashboard.service import AdminService


_log = logging.getLogger(__name__)

# As many as `features/dashboard/service` has, which is not imported where there is no admin listener.
_ADMIN_CONNECTIONS = 64


def run(options: dict[str, Any]) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. Raises StartupError. SIGHUP loads the settings again."""
    if options.get("config") is None:
        ensure_config_file()
    return _run(load_usable(options), options)


def _run(loaded: LoadedConfig, options: dict[str, Any]) -> int:
    _log_to_stderr(verbose=loaded.config.verbose)
    # Signals are restored last: a second one ends even the shutdown, and one stop may arrive as two signals.
    with standard_streams.serving_streams(), Signals() as signals:
        _serve(loaded, options, signals)
        _print("Stopped.")
        standard_streams.drain()
    return 0


def _serve(loaded: LoadedConfig, options: dict[str, Any], signals: Signals) -> None:
    config, path = loaded.config, config_path(options)
    # Before anything is started: raises StartupError for a bad DEEPSEEK_API_KEY.
    access = Access(config)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_open_server(config, clear_store=options["clear_reasoning_cache"]))
        admin = _open_admin(server, loaded, path, stack) if config.admin_port else None
        tunnel = _make_tunnel(server, admin) if config.tunnel_program else None
        if tunnel is not None:
            # Stopped after the server: running answers still pass through it.
            stack.callback(tunnel.stop)
        stack.enter_context(_run_server(server))
        public_url = _public_url(tunnel, signals) if tunnel is not None else None
        if not signals.is_stopping:
            dashboard = (admin.url, admin.link) if admin is not None else None
            addresses = Addresses(server.server_port, public_url, dashboard)
            _print(welcome_text(config, path, addresses, access))
        while signals.wait():
            _reload(server, admin, options)
        if admin is not None:
            admin.context.is_stopping = True
        grace = server.config.shutdown_grace
        _print(f"Stopping; running answers have {grace:g} s to finish. A second Ctrl-C stops at once.")


@contextlib.contextmanager
def serving_for_child(loaded: LoadedConfig, config_path: Path) -> Iterator[DeepSeekProxyServer]:
    """A proxy on this machine alone, on a free port, while a program that we started runs; StartupError as in `run`."""
    # Answers that still run at the end have no reader.
    config = replace(loaded.config, host="127.0.0.1", port=0, tunnel=None, public_hosts=(), shutdown_grace=0.0)
    Access(config)
    _log_to_stderr(verbose=config.verbose)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_open_server(config))
        if config.admin_port:
            _open_admin(server, loaded._replace(config=config), config_path, stack, is_of_run=True)
        stack.enter_context(_run_server(server))
        yield server


@contextlib.contextmanager
def _open_server(config: ProxyConfig, *, clear_store: bool = False) -> Iterator[DeepSeekProxyServer]:
    """A listener with its store, which does not accept yet."""
    # Raises StartupError for one that cannot be used.
    private_files.given_secret()
    _check_features(config)
    # A job holds as many descriptors as a client.
    raise_limits(config.max_connections + config.background_workers + config.background_queue + _ADMIN_CONNECTIONS)
    with open_store(config, must_open=False) as store:
        if clear_store:
            _clear_at_start(store, config)
        server = _listen(config)
        server.config, server.reasoning_store = config, store
        # Closes it at the end.
        with server:
            yield server


def _clear_at_start(store: ReasoningStore, config: ProxyConfig) -> None:
    try:
        _print(clear(store, config))
    except Unusable as fault:
        # The proxy starts all the same.
        _print(f"Nothing was cleared: {config.reasoning_content_path} cannot be used: {fault}")


def ensure_config_file() -> None:
    """Write a commented configuration on the first run. The proxy also starts if that fails."""
    if lacks_home(CONFIG_PATH):
        # A container that runs under an unknown user id.
        _warn("there is no home directory, so all settings are at their defaults; set HOME, or use --config")
        return
    path = expand_home(CONFIG_PATH)
    try:
        if not path.exists():
            private_files.write(path, template().encode())
    except OSError as error:
        _warn(f"cannot write a configuration to edit at {path}: {error.strerror}; all settings are at their defaults")


def load_usable(options: dict[str, Any]) -> LoadedConfig:
    """The configuration, with the store in memory if its path is in a home directory that does not exist."""
    loaded = load(options)
    config = loaded.config
    if lacks_home(config.reasoning_content_path):
        _warn(
            "there is no home directory, so reasoning is kept in memory only; choose a file, perhaps on a volume, with "
            "--reasoning-content-path"
        )
        return loaded._replace(config=replace(config, reasoning_content_path=Path(":memory:")))
    return loaded


def _warn(line: str) -> None:
    sys.stderr.write(f"deepseek-cursor-proxy: {safe_text(line, 1000)}\n")


def _check_features(config: ProxyConfig) -> None:
    """Raise StartupError now, not at the first request, for a value that a feature cannot use."""
    for field, name in proxy.START_CHECKS:
        if (value := getattr(config, field)) is not None:
            resolve(name)(value)


def _listen(config: ProxyConfig) -> DeepSeekProxyServer:
    where = f"{config.host}:{config.port}"
    try:
        return DeepSeekProxyServer((config.host, config.port), DeepSeekProxyHandler)
    # UnicodeError: a name longer than DNS allows.
    except (OSError, UnicodeError) as error:
        if isinstance(error, (socket.gaierror, UnicodeError)):
            raise StartupError(f"--host {config.host} is not an address of this machine") from None
        if error.errno == errno.EADDRINUSE:
            from deepseek_cursor_proxy.cli.doctor.this_machine import free_port

            raise StartupError(
                f"{where} is in use, perhaps by a proxy that is already running; stop it, or choose another port "
                f"with --port {free_port(config)}"
            ) from None
        raise StartupError(f"cannot listen on {where}: {error.strerror}; choose another --host or --port") from None


def _open_admin(
    server: DeepSeekProxyServer,
    loaded: LoadedConfig,
    config_path: Path,
    stack: contextlib.ExitStack,
    *,
    is_of_run: bool = False,
) -> "AdminService | None":
    """The admin listener, if there is one. The proxy also runs without, unless the settings name its host."""
    if not proxy.has("dashboard"):
        return None
    from deepseek_cursor_proxy.features.dashboard.service import AdminService

    try:
        admin = AdminService(server, loaded, config_path, proxy.ADMIN_ROUTES, is_of_run=is_of_run)
    except StartupError as error:
        if loaded.origins["admin_host"] != "default":
            raise
        _log.warning("%s", error)
        return None
    server.dashboard_url = admin.url + "/"
    # Closed before the services that it reads, and after the last answers, which it shows.
    stack.callback(admin.close)
    return admin


@contextlib.contextmanager
def _run_server(server: DeepSeekProxyServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, name="accept")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.drain(server.config.shutdown_grace)


def _make_tunnel(server: DeepSeekProxyServer, admin: "AdminService | None") -> "Tunnel":
    from deepseek_cursor_proxy.cli import tunnel

    def use(url: str) -> None:
        server.set_tunnel_url(url)
        if admin is not None:
            admin.context.public_url = url

    config = server.config
    program = tunnel.choose(config.tunnel_program or "", server.server_port, config.tunnel_url or "", os.environ)
    return tunnel.Tunnel(program, _print, use)


def _public_url(tunnel: "Tunnel", signals: Signals) -> str | None:
    """Start the tunnel; its public URL, or None when the proxy is stopped before there is one."""
    if signals.is_stopping:
        return None
    try:
        # The program may take long; Ctrl-C interrupts it.
        with signals.call_on_stop(tunnel.stop):
            return tunnel.start()
    except StartupError:
        if signals.is_stopping:
            return None
        raise


def _reload(server: DeepSeekProxyServer, admin: "AdminService | None", options: dict[str, Any]) -> None:
    """Load the settings again and apply them; a mistake in them is logged and changes nothing."""
    before = server.config
    fixed = {setting.field: getattr(before, setting.field) for setting in SETTINGS if setting.needs_restart}
    try:
        loaded = load_usable(options)
        after = replace(loaded.config, **fixed)
        _check_features(after)
        server.reconfigure(after)
    except StartupError as error:
        _log.error("%s; the settings stay as they were", error)
        return
    if admin is not None:
        admin.reload(loaded._replace(config=after))
    _log_to_stderr(verbose=after.verbose)
    _log_key_changes(before, after)
    changed = ", ".join(_changed_keys(before, after)) or "nothing"
    pending = ", ".join(_changed_keys(loaded.config, after))
    text = f"Read {config_path(options)} again: {changed} changed." + (f" Restart for {pending}." if pending else "")
    known = set(access_lines(before, Access(before)))
    _print("\n".join([text, *(line for line in access_lines(after, Access(after)) if line not in known)]))


def _log_key_changes(before: ProxyConfig, after: ProxyConfig) -> None:
    if before.keys or after.keys or before.groups or after.groups:
        from deepseek_cursor_proxy.config.named_keys import describe_changes

        for line in (*describe_changes(before.keys, after.keys), *describe_changes(before.groups, after.groups)):
            _log.info("%s", line)


def _changed_keys(one: ProxyConfig, other: ProxyConfig) -> list[str]:
    return [setting.key for setting in DECLARATIONS if getattr(one, setting.field) != getattr(other, setting.field)]


def _print(text: str) -> None:
    """Print a line in one write: other threads print, too."""
    sys.stdout.write(text + "\n")


def _log_to_stderr(*, verbose: bool) -> None:
    # Our lines name neither thread nor source line, and finding them out is half the cost of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    log = logging.getLogger("deepseek_cursor_proxy")
    log.handlers = [standard_streams.LineHandler(sys.stderr)]
    log.propagate = False
    log.setLevel(logging.DEBUG if verbose else logging.INFO)


# The text at the start …


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
    if config.store:
        store += f", shared on {StoreUrl(config.store).toml()}"
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
