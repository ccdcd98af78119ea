"""GET / from a browser: a small page without data. It says that the proxy runs, its base URL, where the dashboard is.

Anyone who finds the address of a tunnel can read it, so it names the dashboard's address only to this machine. The host
in it is the one that the browser asked for; the strict reader of heads lets no markup through, and it is escaped.
"""

import base64
import hashlib
import html

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.config.values import is_loopback
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6472; --paper: #f6f7f9; --card: #fff; --line: #dfe3e8;
  --accent: #3756d4; --good: #14804a }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaf0; --soft: #9aa4b2; --paper: #12151b; --card: #1a1f27;
  --line: #2b323d; --accent: #8ea6ff; --good: #4cc38a } }
* { box-sizing: border-box }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 24px; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { width: 100%; max-width: 34rem; padding: 32px; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px }
h1 { margin: 0 0 4px; font-size: 20px; font-weight: 650 }
p { margin: 0 }
.state { color: var(--soft) }
.state::before { content: ""; display: inline-block; width: 8px; height: 8px; margin: 0 8px 1px 0; border-radius: 50%;
  background: var(--good) }
dl { margin: 24px 0 0; display: grid; gap: 16px }
dt { color: var(--soft); font-size: 14px }
dd { margin: 2px 0 0 }
code { font: 15px/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
a { color: var(--accent) }
a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
"""
_CSP = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>deepseek-cursor-proxy</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>deepseek-cursor-proxy</h1>
<p class="state">Version {version} is running.</p>
<dl>
<div><dt>Base URL for Cursor and other clients of OpenAI's API</dt><dd><code>{base}/v1</code></dd></div>
<div><dt>Base URL for Claude Code and other clients of Anthropic's API</dt><dd><code>{base}</code></dd></div>
{dashboard}
</dl>
</main>
</body>
</html>
"""
_LINK = '<div><dt>Dashboard, on this machine only</dt><dd><a href="{url}">{url}</a></dd></div>'
_COMMAND = (
    "<div><dt>Dashboard, on the machine where the proxy runs</dt><dd><code>deepseek-cursor-proxy dashboard</code></dd>"
    "</div>"
)


def reply(request: HttpRequest, dashboard_url: str | None) -> HttpReply:
    host = request.header("host") or "127.0.0.1"
    is_here = is_loopback(host.rpartition(":")[0].strip("[]") or host) or is_loopback(host.strip("[]"))
    # For display only: any client can send the header.
    scheme = "https" if (request.header("x-forwarded-proto") or "").lower() == "https" else "http"
    dashboard = "" if dashboard_url is None else _LINK.format(url=html.escape(dashboard_url)) if is_here else _COMMAND
    base = html.escape(f"{scheme}://{host}")
    page = _PAGE.format(style=_STYLE, version=__version__, base=base, dashboard=dashboard)
    headers = (
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", _CSP),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
        ("Vary", "Accept"),
    )
    return HttpReply(200, page.encode(), headers)
