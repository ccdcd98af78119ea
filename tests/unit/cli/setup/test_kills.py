"""A setup or an undo that is killed before any of its writes: the next one makes good, to the byte."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.cli.setup.clients import CLIENTS, Client, ProxyEndpoint
from tests.support.width import width
from tests.unit.cli.setup.files_case import ENDPOINT, OTHER_ENDPOINT, FilesCase

DRAFT = re.compile(r"\.[0-9]+\.[0-9a-f]{8}$")
THIRD_ENDPOINT = ProxyEndpoint("http://127.0.0.1:9200", key="sk-of-the-user")
# JSON that names what was there, JSON without comments, TOML with a file of its own beside it, YAML with JSON.
THEIRS = {
    "claude-code": (b'{"env": {"ANTHROPIC_MODEL": "theirs", "X": "1"}, "theirs": 1}\n',),
    "cline": (b'{"lastUsedProvider": "theirs", "providers": {}}',),
    "codex": (b'model = "theirs"\n# a comment\n',),
    "aider": (b"model: theirs\n", b"{}\n"),
}


class Killed(BaseException):
    """The end of a process: nothing that it would do afterwards happens."""


class Killer:
    """Ends the process before its write number `last`, counted from 0."""

    def __init__(self, last: int) -> None:
        self._left = last
        self.has_killed = False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **options: Any) -> Any:
            if self._left == 0:
                self.has_killed = True
                raise Killed
            self._left -= 1
            return call(*arguments, **options)

        return write

    def run(self, action: Callable[[], object]) -> bool:
        """Whether the action was killed."""
        names = ("open", "replace", "unlink", "mkdir", "chmod")
        patches = {name: self.wrap(getattr(os, name)) for name in names}
        try:
            with mock.patch.multiple(os, **patches):
                action()
        except Killed:
            return True
        assert not self.has_killed
        return False


class KillTest(FilesCase):
    def check_every_kill(self, client: Client, history: Callable[[], object], action: Callable[[], object]) -> None:
        """Kill the action before each of its writes, and go on in every way that a user can."""
        saved = self.place / "saved"
        origin = self.snapshot()
        history()
        for folder in ("home", "history"):
            if (self.place / folder).exists():
                shutil.copytree(self.place / folder, saved / folder)
        step, was_killed = 0, True
        while was_killed:
            for way in ("undo", "set up", "set up twice", "the same again"):
                self.restore(saved)
                was_killed = Killer(step).run(action)
                with self.subTest(client.name, step=step, way=way):
                    self.go_on(client, way, action)
                    # The draft that a killed process was about to put in place stays.
                    left = {path: text for path, text in self.snapshot().items() if not DRAFT.search(path.name)}
                    self.assertEqual(origin, left)
            step += 1
        self.assertGreater(step, 2)
        shutil.rmtree(saved)
        self.restore(saved)

    def restore(self, saved: Path) -> None:
        for folder in ("home", "history"):
            shutil.rmtree(self.place / folder, ignore_errors=True)
            if (saved / folder).exists():
                shutil.copytree(saved / folder, self.place / folder)

    def go_on(self, client: Client, way: str, action: Callable[[], object]) -> None:
        if way in ("set up", "set up twice"):
            self.set_up(client, endpoint=OTHER_ENDPOINT)
        if way == "set up twice":
            self.set_up(client, endpoint=THIRD_ENDPOINT)
        if way == "the same again":
            action()
        self.undo(client)

    def test_a_kill_at_any_write_leaves_what_setup_and_undo_can_mend(self) -> None:
        for name, texts in list(THEIRS.items())[: width(1, len(THEIRS))]:
            client = CLIENTS[name]
            for theirs in width((texts,), (texts, ())):
                for endpoints in width(((ENDPOINT,),), ((), (ENDPOINT,), (ENDPOINT, OTHER_ENDPOINT))):
                    for is_undo in (False, True):
                        self.check(client, theirs, endpoints, is_undo=is_undo)

    def check(
        self, client: Client, theirs: tuple[bytes, ...], endpoints: tuple[ProxyEndpoint, ...], *, is_undo: bool
    ) -> None:
        self.home.mkdir(exist_ok=True)
        for target, text in zip(self.targets(client), theirs, strict=False):
            self.write(target.path, text)

        def before() -> None:
            for endpoint in endpoints:
                self.set_up(client, endpoint=endpoint)

        def action() -> None:
            if is_undo:
                self.undo(client)
            else:
                self.set_up(client, endpoint=THIRD_ENDPOINT)

        if endpoints or not is_undo:
            self.check_every_kill(client, before, action)
        shutil.rmtree(self.home, ignore_errors=True)
