"""GET / from a browser: a small page without data. It says that the proxy runs, its base URL, where the dashboard is.

Anyone who finds the address of a tunnel can read it, so it names the dashboard's address only to this machine. The host
in it is the one that the browser asked for; the strict reader of heads lets no markup through, and it is escaped.
"""

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files
from string import Template

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.config.values import is_loopback
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, HttpRequest

_POLICY = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_LINK = '<div><dt>Dashboard, on this machine only</dt><dd><a href="{url}">{url}</a></dd></div>'
_COMMAND = (
    "<div><dt>Dashboard, on the machine where the proxy runs</dt><dd><code>deepseek-cursor-proxy dashboard</code></dd>"
    "</div>"
)


@cache
def _read_page() -> tuple[Template, Headers]:
    page = files(__package__).joinpath("start_page.html").read_text(encoding="utf-8")
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    headers = (
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", _POLICY.format(base64.b64encode(hashlib.sha256(style.encode()).digest()).decode())),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
        ("Vary", "Accept"),
    )
    return Template(page), headers


def reply(request: HttpRequest, dashboard_url: str | None) -> HttpReply:
    host = request.headers.get("host") or "127.0.0.1"
    is_here = is_loopback(host.rpartition(":")[0].strip("[]") or host) or is_loopback(host.strip("[]"))
    # For display only: any client can send the header.
    scheme = "https" if (request.headers.get("x-forwarded-proto") or "").lower() == "https" else "http"
    dashboard = "" if dashboard_url is None else _LINK.format(url=html.escape(dashboard_url)) if is_here else _COMMAND
    base = html.escape(f"{scheme}://{host}")
    page, headers = _read_page()
    return HttpReply(200, page.substitute(version=__version__, base=base, dashboard=dashboard).encode(), headers)
