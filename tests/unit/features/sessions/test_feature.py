import gc
import tempfile
import unittest
import weakref
from pathlib import Path
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.exchange.client_request import RequestReport
from deepseek_cursor_proxy.features.sessions import feature
from deepseek_cursor_proxy.features.sessions.feature import Sessions
from deepseek_cursor_proxy.features.sessions.store import SessionStore
from deepseek_cursor_proxy.features.sessions.trajectory import SessionOptions
from deepseek_cursor_proxy.observers.events import Observers
from deepseek_cursor_proxy.storage.faults import Unusable
from tests.support.client_requests import client_request

ME, YOU = b"m" * 32, b"y" * 32


class TestPendingSessions(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.sessions = Sessions(ProxyConfig(), self.folder / "store.sqlite3")
        self.addCleanup(self.sessions.close)

    def create(self, caller: bytes = YOU, *, is_known: bool = False, **options: object) -> str:
        return self.sessions.create(caller, SessionOptions(**options), is_known=is_known).uuid  # type: ignore[arg-type]

    def listed(self, caller: bytes) -> list[str]:
        return [each.uuid for each in self.sessions.list(caller)]

    def test_they_are_bounded_in_number_and_size_and_push_none_of_a_known_caller_out(self) -> None:
        mine = self.create(ME, is_known=True)
        created = [self.create() for _ in range(feature._MOST_PENDING + 100)]
        self.assertEqual(created[:99:-1], self.listed(YOU))
        for _ in range(500):
            last = self.create(name="n" * 200, tags=("t" * 200,) * 32)
        pending = self.sessions._pending.values()
        self.assertLessEqual(sum(each.size for each in pending), feature._MOST_CHARACTERS_PENDING)
        self.assertIsNotNone(self.sessions.get(YOU, last))
        self.assertEqual([mine], self.listed(ME))

    def test_they_have_a_short_life(self) -> None:
        session, brief = self.create(), self.create(ttl_seconds=0.0)
        self.assertEqual([True, False], [self.sessions.get(YOU, each) is not None for each in (session, brief)])
        with mock.patch.object(feature, "_SECONDS_PENDING", 0.0):
            self.assertEqual(([], None, 0), (self.listed(YOU), self.sessions.get(YOU, session), self.sessions.count()))
            self.sessions.accept(YOU)
            self.assertFalse(self.sessions.delete(YOU, session))
        self.assertEqual([], list(self.folder.iterdir()))

    def test_one_that_was_accepted_is_written_as_soon_as_the_file_can_be_used(self) -> None:
        session = self.create(name="mine")
        with mock.patch.object(SessionStore, "insert", side_effect=Unusable("locked")):
            self.sessions.accept(YOU)
        self.assertEqual(([], [session]), (self.sessions.store().list(YOU), self.listed(YOU)))
        self.sessions.accept(YOU)
        self.assertEqual(
            ([session], [session]), ([each.uuid for each in self.sessions.store().list(YOU)], self.listed(YOU))
        )

    def test_one_that_was_deleted_before_the_file_could_be_used_stays_deleted(self) -> None:
        session = self.create()
        with mock.patch.object(SessionStore, "insert", side_effect=Unusable("locked")):
            self.sessions.accept(YOU)
        self.assertTrue(self.sessions.delete(YOU, session))
        self.sessions.accept(YOU)
        self.assertEqual([], self.listed(YOU))

    def test_an_id_that_is_none_of_ours_is_not_looked_up(self) -> None:
        self.create(ME, is_known=True)
        with mock.patch.object(self.sessions, "store", side_effect=AssertionError):
            for text in ("x", "x" * 16_000, ""):
                self.assertIsNone(self.sessions.get(ME, text))


class TestRecording(unittest.TestCase):
    def test_the_report_of_a_recorded_request_does_not_hold_it(self) -> None:
        """Nor did anything free the two at once: bodies of 48 MB stayed until a collection of the oldest objects."""
        config, report = ProxyConfig(record="all"), RequestReport(Observers({}), iter((1,)), "chat")
        client = client_request(report, {"messages": [{"role": "user"}]}, config)
        Sessions(config, Path(":memory:")).extend(client)
        held = weakref.ref(client)
        del client
        gc.collect()
        self.assertIsNone(held())
