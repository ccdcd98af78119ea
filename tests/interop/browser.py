"""A headless Chromium, driven by Playwright: the one on the PATH, else one from npm.

A page that is opened here may talk to one server only and may report no error: the test fails at its end otherwise.
Where Playwright or a browser is missing and cannot be installed, the tests are skipped, and say why.
"""

import functools
import json
import os
import shutil
import subprocess
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.interop import packages

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# A Chromium inside a package, for machines where nobody may install one.
PACKAGE = "@sparticuz/chromium@147.0.0"
SCRIPT = Path(__file__).parent / "node" / "unpack_chromium.mjs"
PATIENCE_MS = 60_000
# Nobody but our page runs in it, and CI has neither a sandbox for it nor a graphics card.
OPTIONS = ("--no-sandbox", "--disable-gpu", "--font-render-hinting=none")
WIDE, NARROW = (1440, 900), (360, 740)


expect.set_options(timeout=PATIENCE_MS)


class BrowserCase(unittest.TestCase):
    """One browser for all tests of a class, and for each of them pages of its own."""

    browser: Browser

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        path, environment = _chromium()
        playwright = cls.enterClassContext(sync_playwright())
        cls.browser = playwright.chromium.launch(
            executable_path=path, args=list(OPTIONS), env={**os.environ, **environment}
        )
        cls.addClassCleanup(cls.browser.close)

    def open_page(
        self,
        url: str,
        *,
        size: tuple[int, int] = WIDE,
        theme: str = "light",
        now: datetime | None = None,
        expected: tuple[str, ...] = (),
    ) -> Page:
        """A page of a browser that has been nowhere; `expected` are errors of the console that are no failures.

        With `now` its clock stands still.
        """
        width, height = size
        viewport: Any = {"width": width, "height": height}
        context = self.browser.new_context(viewport=viewport, color_scheme=theme, timezone_id="UTC")  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        if now is not None:
            page.clock.set_fixed_time(now)
        errors, hosts = _watch(page)
        self.addCleanup(self._close, page, (errors, hosts), urlsplit(url).netloc, expected)
        page.goto(url)
        return page

    def _close(self, page: Page, seen: tuple[list[str], set[str]], host: str, expected: tuple[str, ...]) -> None:
        page.context.close()
        errors, hosts = seen
        self.assertEqual([], [each for each in errors if not any(text in each for text in expected)])
        self.assertEqual({host}, hosts)


def _watch(page: Page) -> tuple[list[str], set[str]]:
    errors: list[str] = []
    hosts: set[str] = set()

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    return errors, hosts


@functools.cache
def _chromium() -> tuple[Path, dict[str, str]]:
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return Path(found), {}
    script = shutil.copy(SCRIPT, packages.npm(PACKAGE).parent.parent)

    def unpack(place: Path) -> None:
        command = ("node", script, str(place))
        done = subprocess.run(command, capture_output=True, text=True, timeout=packages.INSTALL_SECONDS, check=True)
        unpacked = json.loads(done.stdout)
        (place / "chromium-path").write_text(unpacked["chromium"], encoding="utf-8")
        # The package has a font of its own, so that the page looks the same on machines that have none.
        fonts = _FONTS.format(fonts=unpacked["fonts"], cache=place / "font-cache")
        (place / "fonts.conf").write_text(fonts, encoding="utf-8")

    place = packages.once(unpack, "chromium", PACKAGE)
    return Path((place / "chromium-path").read_text("utf-8")), {"FONTCONFIG_FILE": str(place / "fonts.conf")}


_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{cache}</cachedir>
  <alias binding="same"><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias binding="same"><family>ui-sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
</fontconfig>
"""


@contextmanager
def focus_is_visible(page: Page) -> Iterator[None]:
    """What has the focus after the block shows it: by an outline, or by the row around it."""
    yield
    style = page.evaluate(
        """() => {
            const here = document.activeElement;
            const cell = here.closest("td");
            const shadow = cell ? getComputedStyle(cell).boxShadow : "none";
            return [here.tagName, getComputedStyle(here).outlineStyle, shadow];
        }"""
    )
    assert style[1] != "none" or style[2] != "none", f"no focus to be seen: {style}"
