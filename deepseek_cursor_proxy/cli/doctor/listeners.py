"""The port of the proxy, which is free or held by a program; and the dashboard's, with its key."""

import errno
import socket
from typing import NamedTuple

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.admin import running
from deepseek_cursor_proxy.cli.doctor import running_proxy
from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, skipped, warning
from deepseek_cursor_proxy.cli.doctor.running_proxy import AdminFacts
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.https_proxy import authority

PORT, DASHBOARD = "port", "dashboard"
# No client can connect to these.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# What Windows says for a port that it has reserved.
_DENIED = (errno.EACCES, errno.EPERM)


class PortFacts(NamedTuple):
    """`state`: any (port 0), free, taken, denied, foreign (the address is not ours) or failed."""

    address: str
    state: str
    # Of the proxy of ours that holds it.
    version: str | None = None
    problem: str = ""


def local_url(config: ProxyConfig) -> str:
    """The address of the proxy for programs on this machine."""
    return f"http://{authority(_WILDCARDS.get(config.host, config.host), config.port)}"


def look_at_port(config: ProxyConfig) -> PortFacts:
    address = authority(config.host, config.port)
    if config.port == 0:
        return PortFacts(address, "any")
    try:
        _listen(config.host, config.port)
    # UnicodeError: a name longer than DNS allows.
    except (OSError, UnicodeError) as error:
        return _port_in_trouble(config, address, error)
    return PortFacts(address, "free")


def _listen(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # As the proxy listens: on POSIX also while connections of a former one linger.
    socket.create_server((host, port), family=family).close()


def _port_in_trouble(config: ProxyConfig, address: str, error: Exception) -> PortFacts:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return PortFacts(address, "foreign")
    assert isinstance(error, OSError)
    if error.errno == errno.EADDRNOTAVAIL:
        return PortFacts(address, "foreign")
    version = running_proxy.proxy_version(local_url(config))
    if error.errno == errno.EADDRINUSE or version is not None:
        return PortFacts(address, "taken", version)
    reason = error.strerror or type(error).__name__
    return PortFacts(address, "denied" if error.errno in _DENIED else "failed", problem=reason)


def judge_port(facts: PortFacts, port: int) -> Finding:
    other = f"choose another port, as with --port {port + 1 if port < 65535 else 9000}"
    match facts.state:
        case "any":
            return good(PORT, "any free one (port = 0)")
        case "free":
            return good(PORT, f"{facts.address} is free; no proxy runs there")
        case "taken" if facts.version == __version__:
            return good(PORT, f"{facts.address}, where this proxy runs")
        case "taken" if facts.version is not None:
            text = f"{facts.address} is held by version {facts.version} of this proxy, and this is {__version__}"
            return warning(PORT, text, "stop that one and start this one, or restart its service")
        case "taken":
            return failed(PORT, f"{facts.address} is in use by another program", f"stop that program, or {other}")
        case "foreign":
            text = f"{facts.address} is not an address of this machine"
            return failed(PORT, text, "set host to 127.0.0.1, or 0.0.0.0 for all addresses")
        case _:
            return failed(PORT, f"{facts.address} cannot be listened on ({facts.problem})", other)


def judge_dashboard(config: ProxyConfig, facts: AdminFacts) -> Finding:
    if config.admin_port == 0:
        return skipped(DASHBOARD, "off (admin_port = 0)")
    if facts.key_state == "unreadable":
        text = f"the key in {facts.key_path} cannot be read, or is none"
        return failed(DASHBOARD, text, "make it yours and private (chmod 600), or delete it: the next start makes one")
    if facts.key_state == "exposed":
        return warning(DASHBOARD, f"other users can read {facts.key_path}", f"chmod 600 {facts.key_path}")
    if not facts.url:
        return skipped(DASHBOARD, "no proxy runs with this store", "start the proxy, and open it with `dashboard`")
    if not facts.is_proven:
        problem, _, remedy = running.stranger_text(facts.url).partition("; ")
        return failed(DASHBOARD, problem, remedy)
    if facts.status == 401 and facts.key_state == "set":
        return good(DASHBOARD, f"{facts.url} answers; its key is that of admin_key")
    if facts.status == 401:
        text = f"{facts.url} does not accept the key in {facts.key_path}: it was started with an admin_key"
        return failed(DASHBOARD, text, "have doctor read the proxy's own settings, as with --config")
    if facts.proxy is None:
        text = f"{facts.url} answers {facts.status}, not as a proxy with this store does"
        return failed(DASHBOARD, text, "restart the proxy")
    if facts.proxy.version != __version__:
        text = f"{facts.url} belongs to version {facts.proxy.version}, and this is {__version__}"
        return warning(DASHBOARD, text, "stop that proxy and start this one, or restart its service")
    return good(DASHBOARD, f"{facts.url} answers, for the proxy at {facts.proxy.base_url}")
