"""The files of the dashboard: their types, their digests, and no way out of their folder."""

import tempfile
import unittest
from pathlib import Path

from deepseek_cursor_proxy.admin.app import StaticFiles
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest


class StaticFilesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "dashboard"
        (self.folder / "js" / "views").mkdir(parents=True)
        for name in ("index.html", "js/views/now.js", ".hidden.js", "notes.txt"):
            (self.folder / name).write_text(name)
        (self.folder.parent / "secret.js").write_text("secret")
        self.files = StaticFiles(self.folder)

    def get(self, path: str, **headers: str) -> HttpReply:
        return self.files.reply(HttpRequest("GET", path, headers=headers))

    def test_files_are_served_by_their_path_and_type(self) -> None:
        for path, body, kind in (
            ("/", b"index.html", "text/html; charset=utf-8"),
            ("/index.html", b"index.html", "text/html; charset=utf-8"),
            ("/js/views/now.js", b"js/views/now.js", "text/javascript; charset=utf-8"),
        ):
            with self.subTest(path):
                reply = self.get(path)
                self.assertEqual((200, body, kind), (reply.status, reply.body, dict(reply.headers)["Content-Type"]))

    def test_nothing_else_is_there(self) -> None:
        for path in ("/../secret.js", "/js/../../secret.js", "/js", "/.hidden.js", "/notes.txt", "", "/js/views/"):
            with self.subTest(path):
                self.assertFalse(self.files.has(path))

    def test_a_file_that_is_still_the_same_is_not_sent_again(self) -> None:
        tag = dict(self.get("/").headers)["ETag"]
        again = self.get("/", **{"if-none-match": f'W/"x", {tag}'})
        self.assertEqual((304, b""), (again.status, again.body))
        (self.folder / "index.html").write_text("new")
        self.assertEqual(200, self.get("/", **{"if-none-match": tag}).status)

    def test_a_file_that_cannot_be_read_is_a_503(self) -> None:
        self.assertTrue(self.files.has("/"))
        (self.folder / "index.html").unlink()
        with self.assertRaises(Overloaded):
            self.get("/")

    def test_an_installation_without_the_files_has_none(self) -> None:
        self.assertFalse(StaticFiles(self.folder / "absent").has("/"))
