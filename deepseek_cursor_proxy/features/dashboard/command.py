"""The `dashboard` command: finds the admin listener of the running proxy, and opens its page in a browser.

The key is part of the link, so the link is printed to a terminal only: a log may have other readers. The browser does
not get it as an argument either, which every user of the machine can see, but in a private file that leads there.
"""

import sys
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.cli import running_proxy
from deepseek_cursor_proxy.cli.parser import load, program_name
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage import private_files

_REDIRECT_NAME = "dashboard.html"
_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0;url={link}">
<a href="{link}">The dashboard</a>
"""


def run(options: dict[str, Any]) -> None:
    """Open the dashboard of the proxy that runs with this store; StartupError when none does."""
    import webbrowser

    config = load(options).config
    store, found = config.reasoning_content_path, running_proxy.find(config, with_runs=True)
    if found is not None and not found.is_proven:
        raise StartupError(running_proxy.stranger_text(found.url))
    if found is None:
        raise StartupError(
            f"no proxy with a dashboard runs with the store {store}; start it with `{program_name()}`, or give the "
            "same settings here as there (--config, --reasoning-content-path)"
        )
    # 401: it was started with admin_key, and the page asks for it.
    has_key = found.status != 401
    link = f"{found.url}/#key={running_proxy.read_key(store)}" if has_key else f"{found.url}/"
    if sys.stdout.isatty():
        print(f"If no browser opens: {link}")
    else:
        print(f"If no browser opens: {found.url}/ with the key in {running_proxy.KEY_FILE if has_key else 'admin_key'}")
    if not webbrowser.open(_redirect_page(store, link) if has_key else link):
        raise StartupError("there is no browser to open; open the link above in one, perhaps through `ssh -L`")


def _redirect_page(store: Path, link: str) -> str:
    """The address of a private file that leads to the link; the link itself if there is no place for the file."""
    from html import escape

    path = store.expanduser().absolute().with_name(_REDIRECT_NAME)
    try:
        private_files.write(path, _REDIRECT.format(link=escape(link)).encode())
    except OSError:
        return link
    return path.as_uri()
