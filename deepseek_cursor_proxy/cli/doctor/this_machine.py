"""This machine: Python, the settings, the ports of the proxy and its public address, the store and its disk, clients.

An address has to lead to a proxy of ours, as its /healthz says, which needs no key.

Files of clients are only read, and so is the store, past SQLite's locks if no process has it open. An empty file
without a name, or one that is deleted at once, shows whether its folder can be written.
"""

import contextlib
import errno
import http.client
import os
import platform
import shutil
import socket
import sqlite3
import ssl
import tempfile
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.cli import running_proxy
from deepseek_cursor_proxy.cli.doctor.subject import (
    Finding,
    Subject,
    failed,
    file_status,
    good,
    is_open_to,
    skipped,
    warning,
)
from deepseek_cursor_proxy.cli.setup import clients
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.https_proxy import authority, local_url
from deepseek_cursor_proxy.config.loaded_config import SETTINGS
from deepseek_cursor_proxy.config.values import is_loopback, lacks_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.database import open_read_only
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

PYTHON, SETTINGS_FILE, CLIENT_FILES = "python", "settings", "clients"
STORE, DISK = "store", "disk"
SYSTEM = f"{platform.system()} {platform.release()} {platform.machine()}"
# The first with STRICT tables. Python uses that of the system, which may be much older.
_OLDEST_SQLITE = (3, 37)
# A file of a gigabyte takes longer to read; its rest is not checked.
_READ_THROUGH_SECONDS = 2.0
_STEPS_BETWEEN_LOOKS = 10_000
# SQLite needs some for its log, and a chat adds about a megabyte.
_LEAST_FREE = 50_000_000
_LITTLE_FREE = 500_000_000
_GRANT = "make it and its folder readable and writable for you"
PORT, DASHBOARD, TUNNEL = "port", "dashboard", "tunnel"
# So many are tried when a free port is looked for.
_MOST_PORTS = 100
# Over the network.
_ANSWER_SECONDS = 8.0
_MAX_ANSWER_BYTES = 1000
_HEALTHY = b'{"ok":true}'


def check_python(subject: Subject) -> list[Finding]:
    """`__main__` has refused a Python that is too old, but not one with an old SQLite."""
    sqlite = sqlite3.sqlite_version_info
    versions = f"Python {platform.python_version()}, SQLite {'.'.join(map(str, sqlite))}"
    if sqlite < _OLDEST_SQLITE:
        text = f"{versions}; the store needs SQLite {'.'.join(map(str, _OLDEST_SQLITE))}"
        return [failed(PYTHON, text, "use a Python with a newer SQLite, such as those from python.org and uv")]
    return [good(PYTHON, f"{versions}, {ssl.OPENSSL_VERSION}, {SYSTEM}")]


def check_settings(subject: Subject) -> list[Finding]:
    """Unknown keys and bad values from every source, and who else can read or change the file."""
    settings, path = subject.settings, subject.config_path
    if settings.faults:
        parts = [fault.removeprefix("config: ").partition("; ") for fault in settings.faults]
        default = f"correct or remove it; `{subject.program} serve --help-all` lists all settings"
        return [failed(SETTINGS_FILE, text, remedy or default) for text, _, remedy in parts]
    changed = sum(origin != "default" for origin in settings.origins.values())
    status = file_status(path)
    if status is None:
        return [good(SETTINGS_FILE, f"no file at {path}; changed settings: {changed}")]
    has_keys = any(settings.origins.get(setting.field) == str(path) for setting in SETTINGS if setting.is_secret)
    if is_open_to(status, 0o022):
        return [warning(SETTINGS_FILE, f"other users can change {path}", f"chmod 600 {path}")]
    if is_open_to(status, 0o044) and has_keys:
        return [warning(SETTINGS_FILE, f"{path} has keys, and other users can read it", f"chmod 600 {path}")]
    return [good(SETTINGS_FILE, f"{path}; changed settings: {changed}")]


def check_port(subject: Subject) -> list[Finding]:
    config, proxy = subject.config, subject.admin.proxy
    if proxy is not None and proxy.base_url != f"{local_url(config.host, config.port)}/v1":
        return [good(PORT, f"the proxy runs at {proxy.base_url}, found by its store")]
    start = f"start it with `{subject.program}`, and leave it running"
    if config.port == 0:
        return [failed(PORT, "no proxy runs with this store", start)]
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        # As the proxy listens: on POSIX also while connections of a former one linger.
        socket.create_server((config.host, config.port), family=family).close()
    # UnicodeError: a name longer than DNS allows.
    except (OSError, UnicodeError) as error:
        return [_port_finding(config, error)]
    return [failed(PORT, f"no proxy runs at {authority(config.host, config.port)}", start)]


def free_port(config: ProxyConfig) -> int:
    """The next port that nothing holds; not that of the dashboard, which a second proxy opens as well."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    for port in range(config.port + 1, min(config.port + _MOST_PORTS, 65536)):
        with contextlib.suppress(OSError):
            if port != config.admin_port:
                socket.create_server((config.host, port), family=family).close()
                return port
    return 9000


def _port_finding(config: ProxyConfig, error: OSError | UnicodeError) -> Finding:
    """The finding for a port that cannot be listened on; a proxy of ours may be the reason."""
    address = authority(config.host, config.port)
    if isinstance(error, (socket.gaierror, UnicodeError)) or error.errno == errno.EADDRNOTAVAIL:
        text = f"{address} is not an address of this machine"
        return failed(PORT, text, "set host to 127.0.0.1, or 0.0.0.0 for all addresses")
    if not _problem_at(local_url(config.host, config.port)):
        return good(PORT, f"a proxy runs at {address}")
    other = f"choose another port, as with --port {free_port(config)}"
    if error.errno == errno.EADDRINUSE:
        return failed(PORT, f"{address} is in use by another program", f"stop that program, or {other}")
    return failed(PORT, f"cannot listen on {address} ({error.strerror or type(error).__name__})", other)


def check_dashboard(subject: Subject) -> list[Finding]:
    facts = subject.admin
    if subject.config.admin_port == 0:
        return [skipped(DASHBOARD, "off (admin_port = 0)")]
    if facts.key_state == "unreadable":
        text = f"{facts.key_path} cannot be read, or holds no key"
        return [failed(DASHBOARD, text, "make it readable (chmod 600), or delete it: the next start writes one")]
    if facts.key_state == "exposed":
        return [warning(DASHBOARD, f"other users can read {facts.key_path}", f"chmod 600 {facts.key_path}")]
    if not facts.url:
        remedy = f"start the proxy, and open it with `{subject.program} dashboard`"
        return [skipped(DASHBOARD, "no proxy runs with this store", remedy)]
    if not facts.is_proven:
        problem, _, remedy = running_proxy.stranger_text(facts.url).partition("; ")
        return [failed(DASHBOARD, problem, remedy)]
    if facts.status == 401 and facts.key_state == "set":
        return [good(DASHBOARD, f"{facts.url} answers; its key is that of admin_key")]
    if facts.status == 401:
        text = f"{facts.url} does not accept the key in {facts.key_path}: it was started with an admin_key"
        return [failed(DASHBOARD, text, "give doctor the proxy's own settings, for example with --config")]
    if facts.proxy is None:
        text = f"{facts.url} answers {facts.status}, not as a proxy with this store does"
        return [failed(DASHBOARD, text, "restart the proxy")]
    if facts.proxy.version != __version__:
        text = f"{facts.url} belongs to version {facts.proxy.version}, and this is {__version__}"
        return [warning(DASHBOARD, text, "stop it and start this one, or restart its service")]
    return [good(DASHBOARD, f"{facts.url} answers, for the proxy at {facts.proxy.base_url}")]


def check_tunnel(subject: Subject) -> list[Finding]:
    """The address of the running tunnel, and those of public_hosts that name one host."""
    proxy, config = subject.admin.proxy, subject.config
    urls = [proxy.public_url.rstrip("/")] if proxy is not None and proxy.public_url else []
    urls += [f"https://{host}" for host in config.public_hosts if not host.startswith("*")]
    if not urls:
        where = "the running proxy has none" if proxy is not None else "no proxy with one is running"
        return [skipped(TUNNEL, f"{where}; only clients that call from elsewhere, such as Cursor, need one")]
    findings = []
    for url in dict.fromkeys(urls):
        if problem := _problem_at(url):
            remedy = "restart the proxy with its tunnel, and paste the URL that it prints into Cursor"
            findings.append(failed(TUNNEL, f"{url} does not lead to the proxy: {problem}", remedy))
        else:
            findings.append(good(TUNNEL, f"{url} leads to the proxy; Cursor needs {url}/v1"))
    return findings


def _problem_at(url: str) -> str:
    """What answers at an address in place of a proxy of ours; empty if one does."""
    # Without this header ngrok may show a page of its own.
    request = Request(f"{url}/healthz", headers={"ngrok-skip-browser-warning": "1"})
    try:
        # No outbound proxy leads to this machine.
        opener = build_opener(*([ProxyHandler({})] if is_loopback(urlsplit(url).hostname or "") else ()))
        with opener.open(request, timeout=_ANSWER_SECONDS) as response:
            return "" if response.read(_MAX_ANSWER_BYTES) == _HEALTHY else "something else answers"
    except HTTPError as refusal:
        refusal.close()
        return f"something else answers, with {refusal.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"no answer ({safe_text(error.reason if isinstance(error, URLError) else error)})"


def check_store(subject: Subject) -> list[Finding]:
    place = subject.config.reasoning_content_path
    if str(place) == ":memory:":
        return [good(STORE, "in memory, until the proxy stops")]
    if lacks_home(place):
        remedy = "set HOME, or choose a file with --reasoning-content-path"
        return [warning(STORE, "there is no home directory, so reasoning is kept in memory only", remedy)]
    path = place.expanduser().absolute()
    folder = next((parent for parent in path.parents if parent.is_dir()), path.parent)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        status = None
    except OSError as error:
        return [failed(STORE, f"{path} cannot be used: {error.strerror or error}", _GRANT)]
    findings = [_check_file(path, folder, status, subject)]
    # Damaged files that the proxy has moved away.
    if aside := sorted(file.name for file in path.parent.glob(f"{path.name}.corrupt-*")):
        text = f"damaged files were set aside ({len(aside)}), the last as {aside[-1]}"
        findings.append(warning(STORE, text, "delete them; check the disk if more appear"))
    return [*findings, *_check_disk(path, folder)]


def _check_file(path: Path, folder: Path, status: os.stat_result | None, subject: Subject) -> Finding:
    """The finding on the file; without a status there is none yet."""
    config, proxy = subject.config, subject.admin.proxy
    rows = 0
    try:
        rows = _read_through(path)
    except FileNotFoundError:
        # Or one that is empty, as a proxy leaves it that was killed at its first start.
        status = None
    except Unusable as fault:
        return failed(STORE, f"{path} cannot be used: {fault.reason}", fault.remedy)
    if not _can_write(path, folder):
        return failed(STORE, f"{path} cannot be written: it or its folder is read-only", _GRANT)
    if proxy is not None and proxy.store_fault:
        text = f"the running proxy cannot use it: {proxy.store_fault}"
        return failed(STORE, text, "fix that, then restart the proxy")
    if status is None:
        return good(STORE, f"{path} will be created with the first answer")
    if is_open_to(status, 0o077):
        return warning(STORE, f"other users can read {path}", f"chmod 600 {path}")
    most, size = config.reasoning_cache_max_rows, status.st_size
    amount = f"{path}, {rows:,} of at most {most:,} reasonings, {size / 1e6:,.1f} MB"
    if rows >= most or size >= 2 * ReasoningStore.max_bytes:
        remedy = "raise reasoning_cache_max_rows if chats lose their reasoning"
        return warning(STORE, f"{amount}: full, so the least recently used are deleted", remedy)
    return good(STORE, amount)


def _read_through(path: Path) -> int:
    """Have SQLite check the file as far as time allows; the number of reasonings. Raises as `open_read_only`."""
    until = time.monotonic() + _READ_THROUGH_SECONDS
    with open_read_only(path) as connection:
        count = int(connection.execute("SELECT count(*) FROM reasonings").fetchone()[0])
        connection.set_progress_handler(lambda: int(time.monotonic() > until), _STEPS_BETWEEN_LOOKS)
        try:
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            damage = "ok"
    if damage != "ok":
        raise Unusable(f"it is damaged ({damage})", "stop the proxy and move the file away; a new one is created")
    return count


def _can_write(path: Path, folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            if path.exists():
                os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def _check_disk(path: Path, folder: Path) -> list[Finding]:
    free = shutil.disk_usage(folder).free
    if free >= _LITTLE_FREE:
        return [good(DISK, f"{free / 1e9:,.1f} GB free")]
    level = failed if free < _LEAST_FREE else warning
    text = f"{free / 1e6:,.0f} MB free on the disk of {path}"
    return [level(DISK, text, "free some space, or choose another place for the store")]


def check_clients(subject: Subject) -> list[Finding]:
    """The clients that are installed, and which of them use the proxy."""
    config, proxy, name = subject.config, subject.admin.proxy, CLIENT_FILES
    root = proxy.base_url.removesuffix("/v1") if proxy is not None else local_url(config.host, config.port)
    try:
        machine = clients.Machine.here()
    except StartupError:
        return [skipped(name, "there is no home directory to look for them in")]
    endpoint = clients.ProxyEndpoint(root, clients.key_variable(config))
    here: list[clients.Client] = []
    others: list[clients.Client] = []
    more: list[Finding] = []
    for client in clients.CLIENTS.values():
        found = clients.status(client, machine, endpoint)
        if found.points_here is None:
            text = f"the settings of {client.title} cannot be read: {found.fault}"
            more.append(warning(name, text, f"correct the file of {client.title}"))
        elif found.points_here:
            here.append(client)
            if found.is_installed and (missing := clients.missing_variable(client, machine, endpoint)):
                text = f"{client.title} reads its key from {missing}, which is not set in this shell"
                more.append(warning(name, text, f"set {missing} to {endpoint.key_word} where you start {client.title}"))
        elif found.is_installed:
            others.append(client)
    elsewhere = f"; {', '.join(client.title for client in others)} elsewhere" if others else ""
    if here:
        return [good(name, f"{', '.join(client.title for client in here)} to {root}{elsewhere}"), *more]
    if not others:
        return more or [skipped(name, "no clients found (Cursor can't be checked)")]
    remedy = f"`{subject.program} setup {others[0].name}` configures it for {root}; Cursor can't be checked"
    return [skipped(name, f"none uses {root}{elsewhere}", remedy), *more]
