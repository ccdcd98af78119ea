import hashlib
import os
import stat
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli.setup import files
from deepseek_cursor_proxy.cli.setup.clients import CLIENTS
from deepseek_cursor_proxy.cli.setup.files import Refusal, SetupHistory
from tests.unit.cli.setup.files_case import OTHER_ENDPOINT, FilesCase

CODEX, CLAUDE = CLIENTS["codex"], CLIENTS["claude-code"]


class FilesTest(FilesCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.targets(CODEX)[0].path
        self.write(self.path, b'model = "theirs"\n')

    def mode(self, path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    def assert_refused(self, reason: str) -> None:
        before = self.snapshot()
        with self.assertRaisesRegex(Refusal, reason):
            self.set_up(CODEX)
        self.assertEqual(before, self.snapshot())

    @unittest.skipIf(sys.platform == "win32", "Windows has no such modes")
    def test_a_file_keeps_its_mode_and_a_new_one_is_private(self) -> None:
        self.path.chmod(0o640)
        self.set_up(CODEX)
        self.assertEqual(0o640, self.mode(self.path))
        self.assertEqual(0o600, self.mode(self.targets(CODEX)[1].path))
        self.undo(CODEX)
        self.assertEqual(0o640, self.mode(self.path))

    @unittest.skipIf(sys.platform == "win32", "Windows has no owners like these")
    def test_a_file_keeps_its_owner(self) -> None:
        with mock.patch("os.chown") as chown:
            self.set_up(CODEX)
        found = self.path.stat()
        self.assertIn((found.st_uid, found.st_gid), [call.args[1:] for call in chown.call_args_list])

    @unittest.skipIf(sys.platform == "win32", "links need a right on Windows")
    def test_a_link_stays_a_link(self) -> None:
        real = self.home / "dotfiles" / "codex.toml"
        self.write(real, b"")
        self.path.unlink()
        self.path.symlink_to(real)
        self.set_up(CODEX)
        self.assertTrue(self.path.is_symlink())
        self.assertIn(b"deepseek-proxy", real.read_bytes())
        self.undo(CODEX)
        self.assertEqual((True, b""), (self.path.is_symlink(), real.read_bytes()))
        real.unlink()
        self.assert_refused("broken link")

    def test_a_file_that_is_not_the_users_own_plain_one_is_refused(self) -> None:
        self.path.chmod(0o444)
        self.assert_refused("read-only")
        self.path.chmod(0o644)
        if sys.platform != "win32":
            with mock.patch("os.geteuid", return_value=os.geteuid() + 7):
                self.assert_refused("another user")
        with mock.patch.object(files, "_MOST_BYTES", 3):
            self.assert_refused("too large")
        self.path.unlink()
        self.path.mkdir()
        self.assert_refused("not a regular file")

    @contextmanager
    def no_space_for(self, path: Path) -> Iterator[None]:
        replace = os.replace

        def fail(source: Path, target: Path) -> None:
            if target == path:
                raise OSError(28, "No space left on device", str(target))
            replace(source, target)

        with mock.patch("os.replace", side_effect=fail), self.assertRaisesRegex(OSError, "No space"):
            yield

    def test_a_file_that_cannot_be_written_leaves_all_as_they_were(self) -> None:
        before = self.snapshot()
        with self.no_space_for(self.targets(CODEX)[1].path):
            self.set_up(CODEX)
        self.assertEqual(before, self.snapshot())
        self.set_up(CODEX)
        with self.no_space_for(self.path):
            self.set_up(CODEX, endpoint=OTHER_ENDPOINT)
        self.undo(CODEX)
        self.assertEqual(before, self.snapshot())

    def test_a_file_that_changes_between_question_and_answer_stays(self) -> None:
        plan = files.plan("codex", self.targets(CODEX), self.history)
        self.path.write_bytes(b'model = "new"\n')
        with self.assertRaisesRegex(OSError, "changed just now"):
            files.make("codex", plan, self.history)
        self.assertEqual(b'model = "new"\n', self.path.read_bytes())


class HistoryTest(FilesCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.targets(CLAUDE)[0].path
        self.write(self.path, b'{"theirs": 1}')
        self.folder = self.place / "history"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def test_one_dated_and_private_backup_is_kept(self) -> None:
        self.set_up(CLAUDE)
        mark = hashlib.sha256(b'{"theirs": 1}').hexdigest()[:8]
        self.assertEqual([f"claude-code.2026-11-17.{mark}.settings.json", "claude-code.json"], self.names())
        self.history = SetupHistory(self.folder, date(2026, 12, 1))
        self.set_up(CLAUDE, endpoint=OTHER_ENDPOINT)
        self.assertEqual([f"claude-code.2026-12-01.{mark}.settings.json", "claude-code.json"], self.names())
        backup = self.folder / f"claude-code.2026-12-01.{mark}.settings.json"
        self.assertEqual(b'{"theirs": 1}', backup.read_bytes())
        if sys.platform != "win32":
            self.assertEqual(0o600, stat.S_IMODE(backup.stat().st_mode))
        self.undo(CLAUDE)
        self.assertEqual([], self.names())

    def test_an_undo_refuses_when_our_lines_were_changed(self) -> None:
        self.set_up(CLAUDE)
        changed = self.path.read_bytes().replace(b":9000", b":9001")
        self.path.write_bytes(changed)
        with self.assertRaisesRegex(Refusal, "env.ANTHROPIC_BASE_URL is no longer as setup wrote it; .*by hand"):
            self.undo(CLAUDE)
        self.assertEqual(changed, self.path.read_bytes())

    def test_an_undo_without_a_record_refuses_rather_than_guess(self) -> None:
        self.set_up(CLAUDE)
        self.history.forget("claude-code")
        with self.assertRaisesRegex(Refusal, "there is no record of their former values"):
            self.undo(CLAUDE)

    def test_a_damaged_record_counts_as_none(self) -> None:
        self.set_up(CODEX)
        for data in (b"", b"[]", b'{"x": 1}', b"\xff", b'{"' + str(self.targets(CODEX)[0].path).encode() + b'": {}}'):
            with self.subTest(data):
                (self.folder / "codex.json").write_bytes(data)
                self.assertIsNone(self.history.entry("codex", self.targets(CODEX)[0].path))
        self.undo(CODEX)
        self.assertFalse(self.targets(CODEX)[0].path.exists())
        self.assertFalse(self.targets(CODEX)[1].path.exists())
