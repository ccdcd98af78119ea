"""The files of the dashboard: their types, and no way out of their folder."""

import tempfile
import unittest
from pathlib import Path

from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.features.dashboard.app import StaticFiles


class StaticFilesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "dashboard"
        (self.folder / "js" / "views").mkdir(parents=True)
        for name in ("index.html", "js/views/now.js", ".hidden.js", "notes.txt"):
            (self.folder / name).write_text(name)
        (self.folder.parent / "secret.js").write_text("secret")
        self.files = StaticFiles(self.folder)

    def test_files_are_served_by_their_path_and_type(self) -> None:
        for path, body, kind in (
            ("/", b"index.html", "text/html; charset=utf-8"),
            ("/index.html", b"index.html", "text/html; charset=utf-8"),
            ("/js/views/now.js", b"js/views/now.js", "text/javascript; charset=utf-8"),
        ):
            with self.subTest(path):
                reply = self.files.reply(path)
                self.assertEqual((200, body, kind), (reply.status, reply.body, dict(reply.headers)["Content-Type"]))

    def test_nothing_else_is_there(self) -> None:
        for path in ("/../secret.js", "/js/../../secret.js", "/js", "/.hidden.js", "/notes.txt", "", "/js/views/"):
            with self.subTest(path):
                self.assertFalse(self.files.has(path))

    def test_a_file_that_cannot_be_read_is_a_503(self) -> None:
        self.assertTrue(self.files.has("/"))
        (self.folder / "index.html").unlink()
        with self.assertRaises(Overloaded):
            self.files.reply("/")

    def test_an_installation_without_the_files_has_none(self) -> None:
        self.assertFalse(StaticFiles(self.folder / "absent").has("/"))
