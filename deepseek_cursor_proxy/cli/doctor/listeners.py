"""The ways to the proxy: its port, free or held by a program; the dashboard's, with its key; the public address.

The port of a proxy is known by the page that it shows to browsers, which needs no key. A public address has to lead to
a proxy of ours, as its /healthz says.
"""

import contextlib
import errno
import http.client
import re
import socket
from contextlib import closing
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.admin import running
from deepseek_cursor_proxy.cli.doctor.subject import Finding, Subject, failed, good, skipped, warning
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.https_proxy import authority, local_url
from deepseek_cursor_proxy.redaction import safe_text

PORT, DASHBOARD, TUNNEL = "port", "dashboard", "tunnel"
# On this machine; one that takes longer is as good as stopped.
_ASK_SECONDS = 2.0
# So many are tried when a free port is looked for.
_MOST_PORTS = 100
_MAX_PAGE_BYTES = 1_000_000
_PAGE = re.compile(r"<title>deepseek-cursor-proxy</title>.*Version (\S+) is running", re.DOTALL)
# Over the network.
_ANSWER_SECONDS = 8.0
_MAX_ANSWER_BYTES = 1000
_HEALTHY = b'{"ok":true}'


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
    """What it means that listening failed; a proxy of ours may be the reason."""
    address = authority(config.host, config.port)
    if isinstance(error, (socket.gaierror, UnicodeError)) or error.errno == errno.EADDRNOTAVAIL:
        text = f"{address} is not an address of this machine"
        return failed(PORT, text, "set host to 127.0.0.1, or 0.0.0.0 for all addresses")
    version = _proxy_version(local_url(config.host, config.port))
    if version == __version__:
        return good(PORT, f"this proxy runs at {address}")
    if version is not None:
        text = f"{address} is held by version {version} of this proxy, and this is {__version__}"
        return warning(PORT, text, "stop it and start this one, or restart its service")
    other = f"choose another port, as with --port {free_port(config)}"
    if error.errno == errno.EADDRINUSE:
        return failed(PORT, f"{address} is in use by another program", f"stop that program, or {other}")
    return failed(PORT, f"cannot listen on {address} ({error.strerror or type(error).__name__})", other)


def _proxy_version(url: str) -> str | None:
    """The version of the proxy of ours that listens there; None if none does."""
    address = urlsplit(url)
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_ASK_SECONDS)
        with closing(connection):
            connection.request("GET", "/", headers={"Accept": "text/html"})
            response = connection.getresponse()
            page = response.read(_MAX_PAGE_BYTES).decode("utf-8", "replace")
            if response.status == 200 and (found := _PAGE.search(page)) is not None:
                return found[1]
    return None


def check_dashboard(subject: Subject) -> list[Finding]:
    facts = subject.admin
    if subject.config.admin_port == 0:
        return [skipped(DASHBOARD, "off (admin_port = 0)")]
    if facts.key_state == "unreadable":
        text = f"{facts.key_path} cannot be read, or holds no key"
        return [failed(DASHBOARD, text, "make it yours alone (chmod 600), or delete it: the next start writes one")]
    if facts.key_state == "exposed":
        return [warning(DASHBOARD, f"other users can read {facts.key_path}", f"chmod 600 {facts.key_path}")]
    if not facts.url:
        remedy = f"start the proxy, and open it with `{subject.program} dashboard`"
        return [skipped(DASHBOARD, "no proxy runs with this store", remedy)]
    if not facts.is_proven:
        problem, _, remedy = running.stranger_text(facts.url).partition("; ")
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
        if problem := _public_problem(url):
            remedy = "start the proxy and its tunnel again, and paste the URL that it prints into Cursor"
            findings.append(failed(TUNNEL, f"{url} does not lead to the proxy: {problem}", remedy))
        else:
            findings.append(good(TUNNEL, f"{url} leads to the proxy; Cursor needs {url}/v1"))
    return findings


def _public_problem(url: str) -> str:
    """What answers at an address in place of a proxy of ours; empty if one does."""
    # Without this header ngrok may show a page of its own.
    request = Request(f"{url}/healthz", headers={"ngrok-skip-browser-warning": "1"})
    try:
        with urlopen(request, timeout=_ANSWER_SECONDS) as response:
            return "" if response.read(_MAX_ANSWER_BYTES) == _HEALTHY else "something else answers"
    except HTTPError as refusal:
        refusal.close()
        return f"something else answers, with {refusal.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"no answer ({safe_text(error.reason if isinstance(error, URLError) else error)})"
