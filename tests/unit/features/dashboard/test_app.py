import itertools
import re
import tempfile
import unittest
from pathlib import Path

import deepseek_cursor_proxy
from deepseek_cursor_proxy.features.dashboard.app import static_file


class StaticFilesTest(unittest.TestCase):
    def setUp(self) -> None:
        features = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = features / "dashboard" / "page"
        for folder in (self.folder / "js" / "views", features / "keys" / "views"):
            folder.mkdir(parents=True)
        for name in ("index.html", "js/views/now.js", ".hidden.js", "notes.txt"):
            (self.folder / name).write_text(name)
        (features / "keys" / "views" / "keys.js").write_text("of the feature")
        (self.folder.parent / "secret.js").write_text("secret")
        self.features = features

    def test_files_are_served_by_their_path_and_type(self) -> None:
        for path, body, kind in (
            ("/", b"index.html", "text/html; charset=utf-8"),
            ("/index.html", b"index.html", "text/html; charset=utf-8"),
            ("/js/views/now.js", b"js/views/now.js", "text/javascript; charset=utf-8"),
            ("/js/views/keys.js", b"of the feature", "text/javascript; charset=utf-8"),
        ):
            with self.subTest(path):
                reply = static_file(path, self.features)
                assert reply is not None
                self.assertEqual((200, body, kind), (reply.status, reply.body, dict(reply.headers)["Content-Type"]))

    def test_nothing_else_is_there(self) -> None:
        paths = ("/../secret.js", "/js/../../secret.js", "/js", "/.hidden.js", "/notes.txt", "", "/js/views/", "/no.js")
        for path in (
            *paths, "//secret.js", "/js//views/now.js", "/js/views/now.js/", "/index.html\n", "/js/views/no.js",
        ):  # fmt: skip
            self.assertIsNone(static_file(path, self.features), path)

    def test_an_installation_without_the_files_has_none(self) -> None:
        self.assertIsNone(static_file("/", self.folder / "absent"))

    def test_every_file_of_the_page_is_served(self) -> None:
        for path in FILES:
            self.assertIsNotNone(static_file("/" + path.relative_to(DASHBOARD).as_posix()), path)


PACKAGE = Path(deepseek_cursor_proxy.__file__).parent
DASHBOARD = PACKAGE / "features" / "dashboard" / "page"
FILES = sorted(path for path in DASHBOARD.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}

# What parses text as HTML or runs it.
FORBIDDEN = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "createContextualFragment", "srcdoc",
    "eval(", "Function(", 'setAttribute("style"', "javascript:", "XMLHttpRequest", "sendBeacon", "WebSocket",
)  # fmt: skip

# WCAG 2.2 AA: text 1.4.3, parts of the interface and of charts 1.4.11.
TEXT, GRAPHICS = 4.5, 3.0
SURFACES = ("page", "surface", "sunken", "hover")
SERIES = tuple(f"series-{number}" for number in range(6))
PAIRS = {
    **dict.fromkeys(itertools.product(("text", "quiet", "accent"), SURFACES), TEXT),
    **dict.fromkeys(itertools.product(("good", "warn", "bad"), ("page", "surface")), TEXT),
    **{(name, f"{name}-soft"): TEXT for name in ("accent", "good", "warn", "bad")},
    **{("text", f"{name}-soft"): TEXT for name in ("accent", "bad")},
    ("quiet", "accent-soft"): TEXT,
    ("on-accent", "accent-fill"): TEXT,
    **dict.fromkeys(itertools.product((*SERIES, "bad", "line-strong"), ("surface",)), GRAPHICS),
    ("line-strong", "page"): GRAPHICS,
    ("accent", "line"): GRAPHICS,
}


class FilesTest(unittest.TestCase):
    def test_nothing_parses_or_runs_text(self) -> None:
        for path in SCRIPTS:
            for word in FORBIDDEN:
                self.assertNotIn(word, TEXTS[path], (path.name, word))

    def test_the_page_has_no_script_or_style_of_its_own(self) -> None:
        page = TEXTS[DASHBOARD / "index.html"]
        self.assertNotRegex(page, r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]* src=)")

    def test_everything_is_loaded_from_the_page_itself(self) -> None:
        for path, text in TEXTS.items():
            with self.subTest(path.name):
                # The name of the SVG namespace is loaded by nobody.
                foreign = re.findall(
                    r"(?:https?:)?//[a-z0-9-]+\.[^\s\"'`]+", text.replace("http://www.w3.org/2000/svg", "")
                )
                self.assertEqual([], foreign)
                self.assertNotIn("@import", text)

    def test_every_file_that_is_named_is_there(self) -> None:
        page = TEXTS[DASHBOARD / "index.html"]
        named = {DASHBOARD / name for name in re.findall(r'(?:src|href)="([^"#]+)"', page)}
        for path in SCRIPTS:
            named |= {
                (path.parent / name).resolve()
                for name in re.findall(r'^(?:import|}).* from "(.+)";$', TEXTS[path], re.M)
            }
        self.assertEqual(set(), {str(path) for path in named if not path.is_file()})
        # And none is left over.
        self.assertEqual({DASHBOARD / "index.html", *named}, set(FILES))

    def test_every_icon_that_is_used_is_there(self) -> None:
        page = TEXTS[DASHBOARD / "index.html"]
        drawn = set(re.findall(r'<symbol id="i-(\w+)"', page))
        used = set(re.findall(r'href="#i-(\w+)"', page)) | {"light", "dark", "auto"}
        for path in SCRIPTS:
            used |= set(re.findall(r'\bicon(?:Button)?\("(\w+)"', TEXTS[path]))
        self.assertEqual(drawn, used)


class ContrastTest(unittest.TestCase):
    """The colours of theme.css, each a pair of light and dark."""

    def test_text_and_charts_can_be_read_in_both_themes(self) -> None:
        colours = {
            name: pair
            for name, *pair in re.findall(
                r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", TEXTS[DASHBOARD / "css" / "theme.css"]
            )
        }
        for (front, back), least in PAIRS.items():
            for theme, name in enumerate(("light", "dark")):
                with self.subTest(f"{front} on {back}, {name}"):
                    self.assertGreaterEqual(round(_contrast(colours[front][theme], colours[back][theme]), 2), least)


def _contrast(first: str, second: str) -> float:
    """WCAG 2.2: the ratio of the relative luminances."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (_linear(int(colour[start : start + 2], 16) / 255) for start in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)
