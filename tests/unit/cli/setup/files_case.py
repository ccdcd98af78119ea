"""A home for configuration files, a history beside it, and the three systems on which clients are set up."""

import tempfile
import unittest
from datetime import date
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.cli.setup import files
from deepseek_cursor_proxy.cli.setup.clients import Client, Machine, ProxyEndpoint, Target
from deepseek_cursor_proxy.cli.setup.files import FileChange, SetupHistory

SYSTEMS = ("linux", "darwin", "win32")
ENDPOINT = ProxyEndpoint("http://127.0.0.1:9000", key="sk-of-the-user")
OTHER_ENDPOINT = ProxyEndpoint("http://127.0.0.1:9100", key="sk-of-the-user")


class FilesCase(unittest.TestCase):
    def setUp(self) -> None:
        # Nothing here survives a crash of the system, and waiting for the disk takes most of the time.
        self.enterContext(mock.patch("os.fsync"))
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.home = self.place / "home"
        self.home.mkdir()
        self.history = SetupHistory(self.place / "history", date(2026, 11, 17))

    def machine(self, system: str = "linux", programs: tuple[str, ...] = (), **environment: str) -> Machine:
        return Machine(system, self.home, environment, programs.__contains__)

    def targets(self, client: Client, system: str = "linux", endpoint: ProxyEndpoint = ENDPOINT) -> list[Target]:
        return client.targets(self.machine(system), endpoint)

    def set_up(self, client: Client, system: str = "linux", endpoint: ProxyEndpoint = ENDPOINT) -> list[FileChange]:
        plan = files.plan(client.name, self.targets(client, system, endpoint), self.history)
        files.make(client.name, plan, self.history)
        return plan

    def undo(self, client: Client, system: str = "linux", endpoint: ProxyEndpoint = ENDPOINT) -> list[FileChange]:
        plan = files.plan(client.name, self.targets(client, system, endpoint), self.history, is_undo=True)
        files.undo(client.name, plan, self.history)
        return plan

    def write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def snapshot(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}
