"""The `serve` command: start store, listeners, tunnel and signals, reload at SIGHUP, stop all in reverse order."""

import contextlib
import dataclasses
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.cli.signals import SignalRequest, Signals
from deepseek_cursor_proxy.cli.store import check_engine, clear, open_store
from deepseek_cursor_proxy.cli.welcome import Addresses, access_lines, welcome_text
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS, LoadedConfig, template
from deepseek_cursor_proxy.config.settings import CONFIG_PATH
from deepseek_cursor_proxy.config.values import expand_home, lacks_home
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

# A supervisor asks for /healthz at once, and importing the rest would delay that answer. An earlier chat imports what
# it needs itself.
_SECONDS_BEFORE_WARM_UP = 0.1

# As many as `features/dashboard/service` has, which is not imported where there is no admin listener.
_ADMIN_CONNECTIONS = 64

ConfigLoader = Callable[[], LoadedConfig]


def run(loaded: LoadedConfig, config_path: Path, *, clear_store: bool, reload_config: ConfigLoader) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. Raises StartupError. SIGHUP calls `reload_config`."""
    _log_to_stderr(verbose=loaded.config.verbose)
    # Signals are restored last: a second one ends even the shutdown, and one stop may arrive as two signals.
    with standard_streams.serving_streams(), Signals() as signals:
        _serve(loaded, config_path, signals, clear_store=clear_store, reload_config=reload_config)
        _print("Stopped.")
        standard_streams.drain()
    return 0


def _serve(
    loaded: LoadedConfig, config_path: Path, signals: Signals, *, clear_store: bool, reload_config: ConfigLoader
) -> None:
    config = loaded.config
    # Before anything is started: raises StartupError for a bad DEEPSEEK_API_KEY.
    access = Access(config)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_open_server(config, clear_store=clear_store))
        admin = _open_admin(server, loaded, config_path, stack) if config.admin_port else None
        tunnel = _make_tunnel(server, admin) if config.tunnel_program else None
        if tunnel is not None:
            # Stopped after the server: running answers still pass through it.
            stack.callback(tunnel.stop)
        stack.enter_context(_run_server(server))
        public_url = _public_url(tunnel, signals) if tunnel is not None else None
        if not signals.is_stopping:
            dashboard = (admin.url, admin.link) if admin is not None else None
            addresses = Addresses(server.server_port, public_url, dashboard)
            _print(welcome_text(config, config_path, addresses, access))
        while signals.wait() is SignalRequest.RELOAD:
            _reload(server, admin, config_path, reload_config)
        if admin is not None:
            admin.context.is_stopping = True
        grace = server.config.shutdown_grace
        _print(f"Stopping; running answers have {grace:g} s to finish. A second Ctrl-C stops at once.")


@contextlib.contextmanager
def serving_for_child(loaded: LoadedConfig, config_path: Path) -> Iterator[DeepSeekProxyServer]:
    """A proxy on this machine alone, on a free port, while a program that we started runs; StartupError as in `run`."""
    # Answers that still run at the end have no reader.
    config = dataclasses.replace(
        loaded.config, host="127.0.0.1", port=0, tunnel=None, public_hosts=(), shutdown_grace=0.0
    )
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
    check_engine(config)
    # A job holds as many descriptors as a client.
    raise_limits(config.max_connections + config.background_workers + config.background_queue + _ADMIN_CONNECTIONS)
    with open_store(config, must_open=False) as store:
        if clear_store:
            _clear_at_start(store, config)
        if config.trace_dir is not None:
            _make_trace_directory(config.trace_dir)
        if config.tokenizer is not None:
            _check_tokenizer(config.tokenizer)
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
            private_files.make_directory(path.parent)
            private_files.write(path, template().encode())
    except OSError as error:
        _warn(f"cannot write a configuration to edit at {path}: {error.strerror}; all settings are at their defaults")


def with_usable_store(loaded: LoadedConfig) -> LoadedConfig:
    """The configuration, with the store in memory if its path is in a home directory that does not exist."""
    config = loaded.config
    if lacks_home(config.reasoning_content_path):
        _warn(
            "there is no home directory, so reasoning is kept in memory only; choose a file, perhaps on a volume, with "
            "--reasoning-content-path"
        )
        return loaded._replace(config=dataclasses.replace(config, reasoning_content_path=Path(":memory:")))
    return loaded


def _warn(line: str) -> None:
    sys.stderr.write(f"deepseek-cursor-proxy: {safe_text(line, 1000)}\n")


def _check_tokenizer(path: Path) -> None:
    """Raise StartupError if the file cannot be opened. It is read when first needed, which takes a second."""
    try:
        with expand_home(path).open("rb"):
            pass
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}; choose another file with --tokenizer") from None


def _make_trace_directory(trace_dir: Path) -> None:
    """Raise StartupError now, not at the first request, if traces cannot be written."""
    probe = expand_home(trace_dir) / ".can-write"
    try:
        private_files.make_directory(probe.parent)
        private_files.write(probe, b"")
        probe.unlink()
    except OSError as error:
        raise StartupError(
            f"cannot write into {trace_dir}: {error.strerror}; choose another directory with --trace-dir"
        ) from None


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
    # Imports what a chat needs, so that the first one does not wait for it.
    warm_up = threading.Timer(_SECONDS_BEFORE_WARM_UP, server.warm_up)
    warm_up.daemon = True
    warm_up.start()
    try:
        yield
    finally:
        warm_up.cancel()
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


def _reload(
    server: DeepSeekProxyServer, admin: "AdminService | None", config_path: Path, reload_config: ConfigLoader
) -> None:
    """Load the settings again and apply them; a mistake in them is logged and changes nothing."""
    before = server.config
    fixed = {setting.field: getattr(before, setting.field) for setting in SETTINGS if setting.needs_restart}
    try:
        loaded = reload_config()
        if loaded.config.trace_dir is not None:
            _make_trace_directory(loaded.config.trace_dir)
        after = dataclasses.replace(loaded.config, **fixed)
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
    text = f"Read {config_path} again: {changed} changed." + (f" Restart for {pending}." if pending else "")
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
