"""Test cases with proxies, or their stores, that share an engine: the stand-in, or a real server in tests/interop."""

import contextlib
import logging
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import tests.support.shared_scripts  # noqa: F401  (registers the twins of the scripts)
from deepseek_cursor_proxy.features.redis import client
from deepseek_cursor_proxy.features.redis.state import SharedReasonings, SharedState
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.polling import eventually, wait_until
from tests.support.resp_server import RespServer

SECRET = bytes(range(32))


class EngineTestCase(unittest.TestCase):
    """`engine` can be stopped, started, paused and resumed."""

    # A busy machine is no outage, unless a test is about deadlines.
    has_deadlines = False

    def setUp(self) -> None:
        super().setUp()
        if not self.has_deadlines:
            self.enterContext(mock.patch.object(client, "CALL_SECONDS", 5.0))
        self.engine = self.start_engine()
        self.place = Path(self.enterContext(TemporaryDirectory()))
        self.instances: list[Instance] = []
        self.log: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.log.append(record.getMessage())  # type: ignore[method-assign]
        for name in ("features.redis", "features.keys", "storage.database"):
            log = logging.getLogger(f"deepseek_cursor_proxy.{name}")
            log.addHandler(handler)
            self.addCleanup(log.removeHandler, handler)
            self.addCleanup(setattr, log, "propagate", log.propagate)
            log.propagate = False

    def start_engine(self) -> Any:
        return self.enterContext(RespServer())

    def instance(self, name: str = "one", *, secret: bytes = SECRET, **options: Any) -> "Instance":
        instance = Instance(self.place / f"{name}.sqlite3", self.engine.url, secret, **options)
        self.instances.append(instance)
        self.addCleanup(instance.close)
        return instance

    def assert_every_row_expires(self) -> None:
        """But for the check value of the secret."""
        rows = set(self.engine.run(b"SCAN", b"0", b"COUNT", b"1000")[1]) - {b"dcp:check"}
        self.assertGreater(len(rows), 0)
        self.assertEqual([], [row for row in rows if not 0 < self.engine.run(b"TTL", row) <= 31 * 24 * 3600])

    def wait_until_shared(self) -> None:
        for instance in self.instances:
            instance.wait_until_shared()


class Instance:
    """The stores of one proxy."""

    def __init__(self, path: Path, url: str, secret: bytes, **options: Any) -> None:
        self.reasonings = ReasoningStore(path)
        self.state = SharedState(url, secret, self.reasonings.database, **options)
        self.shared = SharedReasonings(self.state, 30 * 24 * 3600)
        self.reasonings.share(self.shared)
        self.state.open()
        # That waits for half a second, in which a busy machine may know nothing of the engine yet.
        eventually(lambda: self.state._thread.wait(0) or not self.state.engine.is_available, 3.0)

    def record(self, text: str, *numbers: int, caller: bytes = b"c" * 32, **more: Any) -> bool:
        return self.reasonings.record([([key(number) for number in numbers], text)], caller=caller, **more)

    def find(self, *numbers: int, caller: bytes = b"c" * 32) -> dict[int, list[str]]:
        found = self.reasonings.find([key(number) for number in numbers], caller)
        return {number: found[key(number)] for number in numbers if key(number) in found}

    def wait_until_shared(self) -> None:
        wait_until(lambda: not self.state.fault and not self.state.backlog)

    def close(self) -> None:
        self.state.close()
        with contextlib.suppress(Exception):
            self.reasonings.close()


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")
