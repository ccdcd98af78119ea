"""The dashboard, as the commands see it: `serve` opens the admin listener and prints its link, `dashboard` finds it.

The key is part of the link, so the link is printed to a terminal only: a log may have other readers. The browser does
not get it as an argument either, which every user of the machine can see, but in a private file that leads there.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deepseek_cursor_proxy.admin import key_files
from deepseek_cursor_proxy.cli.settings_flags import load
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.values import is_loopback
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage import private_files

if TYPE_CHECKING:
    from deepseek_cursor_proxy.admin.running import RunningProxy

_REDIRECT_NAME = "dashboard.html"
_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0;url={link}">
<a href="{link}">The dashboard</a>
"""


class Dashboard(NamedTuple):
    """A dashboard that answers: its address, and the key in admin.key if that is the right one."""

    url: str
    key: str | None

    @property
    def link(self) -> str:
        return f"{self.url}/#key={self.key}" if self.key else f"{self.url}/"


def open_dashboard(options: dict[str, Any]) -> None:
    """Open the dashboard of the proxy that runs with this store; StartupError when none does."""
    # Imported late, as the others below: `serve` prints a line and needs none of them.
    import webbrowser

    from deepseek_cursor_proxy.admin import running

    config = load(options).config
    store = config.reasoning_content_path
    key = None if config.admin_key is not None else key_files.read_key(store)
    answers = list(running.ask_all(store, "/healthz", key))
    # 401: it was started with admin_key, and the page asks for it.
    proven = [each for each in answers if each.is_proven and each.status in (200, 401)]
    if answers and not proven:
        raise StartupError(running.stranger_text(answers[0].url))
    found = next((Dashboard(each.url, key if each.status == 200 else None) for each in proven), None)
    if found is None:
        raise StartupError(
            f"no proxy with a dashboard runs with the store {store}; start it with `serve`, or name its settings here "
            "as there (--config, --reasoning-content-path)"
        )
    if sys.stdout.isatty():
        print(f"If no browser opens: {found.link}")
    else:
        print(f"If no browser opens: {found.url}/ with the key in {key_files.NAME if found.key else 'admin_key'}")
    page = _redirect_page(store, found.link) if found.key else found.link
    if not webbrowser.open(page):
        raise StartupError("there is no browser to open; open the link above in one, perhaps through `ssh -L`")


def find_running(config: ProxyConfig) -> "RunningProxy | None":
    """The proxy that runs with this store; None when none does, or its key is not known here."""
    from deepseek_cursor_proxy.admin import running

    store = config.reasoning_content_path
    key = None if config.admin_key is not None else key_files.read_key(store)
    answers = list(running.ask_all(store, "/api/stats", key))
    for answer in answers:
        if (found := running.read_stats(answer.body)) is not None:
            return found
    if strangers := [each.url for each in answers if not each.is_proven]:
        print(f"deepseek-cursor-proxy: {running.stranger_text(strangers[0])}", file=sys.stderr)
    return None


def _redirect_page(store: Path, link: str) -> str:
    """The address of a private file that leads to the link; the link itself if there is no place for the file."""
    from html import escape

    path = store.expanduser().absolute().with_name(_REDIRECT_NAME)
    try:
        private_files.write(path, _REDIRECT.format(link=escape(link)).encode())
    except OSError:
        return link
    return path.as_uri()


def start_lines(config: ProxyConfig, url: str, link: str) -> Iterator[str]:
    """The lines on the dashboard in the text that the start prints."""
    shown = link if sys.stdout.isatty() else f"{url}/ (the command `dashboard` opens it)"
    yield f"  Dashboard                  {shown}"
    port = int(url.rpartition(":")[2])
    if port != config.admin_port:
        yield f"Port {config.admin_port} is in use, so the dashboard has {port} (see admin_port)."
    if not is_loopback(config.admin_host):
        yield (
            f"The dashboard and its API are open to your network at {url}, in clear: who has the key sees what is "
            "asked here. Set admin_host to localhost unless you mean it."
        )
    if config.admin_key is not None and config.admin_key.is_guessable:
        yield "admin_key is so short that it can be guessed: `access-key --new` makes a better one."
