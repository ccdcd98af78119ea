import logging
import sqlite3
import threading
from datetime import datetime
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.deepseek.prices import Cost
from deepseek_cursor_proxy.deepseek.usage import Tokens
from deepseek_cursor_proxy.features.request_log.feature import RequestRecord, TurnCounts
from deepseek_cursor_proxy.features.usage import ledger
from deepseek_cursor_proxy.features.usage.ledger import DaySums, UsageLedger, UsageRow, add_sums
from deepseek_cursor_proxy.observers.events import RequestFacts, Result, Timing
from deepseek_cursor_proxy.storage.database import Database
from tests.support.databases import StoreFileTestCase
from tests.support.polling import wait_until

NOON = datetime(2026, 11, 17, 12).timestamp()


def record(number: int = 1, started_at: float = NOON, **fields: Any) -> RequestRecord:
    details = {
        name: fields.pop(name) for name in ("key", "conversation", "requested_model", "model", "api") if name in fields
    }
    facts = RequestFacts(
        number, started_at, **{"api": "chat", "key": "0123456789ab", "model": "deepseek-flash", **details}
    )
    defaults: dict[str, Any] = {
        "result": Result.COMPLETED, "status": 200, "message": None, "timing": Timing(2.5, 0.5, 0.1, 0.2),
        "upstream": "DeepSeek", "tokens": Tokens(90, 10, 5, 3, 1), "cost": Cost(0.25, 0.5, 0.125, "USD", "2026-09-10"),
        "turns": TurnCounts(1, 2, 3, 4, 5), "divergence": "system",
    }  # fmt: skip
    return RequestRecord(facts, **{**defaults, **fields})


class LedgerTestCase(StoreFileTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.now = NOON
        self.enterContext(mock.patch.object(ledger.WaitingRequests, "seconds_between_batches", 0.01))

    def ledger(self, database: Database | None = None, **options: Any) -> UsageLedger:
        options = {"max_age_seconds": 1000.0, "max_rows": 100, "clock": lambda: self.now, **options}
        self.database = database or self.open()
        opened = UsageLedger(self.database, **options)
        self.addCleanup(opened.close)
        return opened

    def rows(self) -> list[UsageRow]:
        with self.database.reader() as connection:
            return list(ledger.read_page(connection, 10_000, None, {}))

    def sums(self, day: str = "2026-11-17") -> dict[tuple[str, ...], DaySums]:
        with self.database.reader() as connection:
            return {group[1:]: sums for group, sums in ledger.read_days(connection, day, day)}

    def all_sums(self) -> DaySums:
        return add_sums(self.sums().values())


class TestLedger(LedgerTestCase):
    def test_a_request_is_written_with_all_its_figures_by_another_thread(self) -> None:
        opened = self.ledger()
        opened.add(record(7, NOON - 2.5, conversation="abcdefabcdef"))
        wait_until(self.rows)
        (row,) = self.rows()
        self.assertEqual(
            UsageRow(
                1, NOON, 7, "chat", "0123456789ab", "abcdefabcdef", "", "deepseek-flash", "DeepSeek", 0, "completed",
                200, 90, 10, 5, 3, 1, 0.25, 0.5, 0.125, "USD", "2026-09-10", 0, 2.5, 0.1, 0.2, 0.5, 0, 1, 2, 3, 4, 5,
                "system", 0, 0, 0,
            ),
            row,
        )  # fmt: skip
        self.assertEqual(
            {("deepseek-flash", "0123456789ab", "chat", "USD"): DaySums(1, 0, 0, 90, 10, 5, 3, 1, 0.25, 0.5, 0.125)},
            self.sums(),
        )

    def test_sums_of_a_day_are_those_of_its_rows_by_model_key_api_and_currency(self) -> None:
        opened = self.ledger()
        for fields in ({}, {"model": "x"}, {"key": "k" * 12}, {"api": "messages"}, {"result": Result.FAILED}):
            opened.add(record(**fields))
            opened.add(record(**fields))
        opened.add(record(cost=None))
        opened.add(record(cost=None, tokens=None, timing=Timing(1.0), result=Result.REFUSED))
        opened.flush()
        self.assertEqual([4, 2, 2, 2, 2], sorted((each.requests for each in self.sums().values()), reverse=True))
        total = self.all_sums()
        self.assertEqual((12, 3, 1), (total.requests, total.failed, total.unknown_costs))
        self.assertEqual((11 * 90, 10 * 0.25), (total.hit, total.cost))

    def test_a_request_whose_key_was_refused_leaves_nothing(self) -> None:
        opened = self.ledger()
        opened.add(record(key=""))
        opened.flush()
        self.assertEqual(([], {}), (self.rows(), self.sums()))

    def test_a_caller_that_got_an_answer_is_known_to_the_next_run(self) -> None:
        first = self.ledger()
        first.add(record(key="answered0000"))
        first.add(record(key="refused00000", result=Result.FAILED, status=401, tokens=None, cost=None))
        first.close()
        second = self.ledger(self.database)
        keys = ("answered0000", "refused00000", "unknown00000", "")
        self.assertEqual([True, False, False, False], [second.was_accepted_before(key) for key in keys])

    def test_no_caller_is_known_while_the_file_cannot_be_read(self) -> None:
        opened = self.ledger()
        opened.add(record(key="answered0000"))
        opened.flush()
        with (
            mock.patch.object(ledger, "read_answered_keys", side_effect=sqlite3.OperationalError),
            self.assertLogs(ledger.__name__, logging.WARNING),
        ):
            self.assertFalse(opened.was_accepted_before("answered0000"))
        self.assertTrue(opened.was_accepted_before("answered0000"))

    def test_names_beyond_a_bound_are_added_up_together(self) -> None:
        opened = self.ledger(max_rows=10_000)
        with mock.patch.object(ledger, "_MAX_GROUPS_PER_DAY", 3):
            for number in range(10):
                opened.add(record(model=f"model-{number}"))
            opened.add(record(model="model-0"))
            opened.flush()
        found = {names[0]: sums.requests for names, sums in self.sums().items()}
        self.assertEqual({"model-0": 2, "model-1": 1, "model-2": 1, "other": 7}, found)

    def test_closing_writes_what_waits_and_leaves_no_thread(self) -> None:
        with mock.patch.object(ledger.WaitingRequests, "seconds_between_batches", 3600.0):
            opened = self.ledger()
            threads = {*threading.enumerate()}
            for number in range(200):
                opened.add(record(number))
            opened.close()
        self.assertEqual((200, 200), (len(self.rows()), self.all_sums().requests))
        opened.close()
        self.database.close()
        self.assertLessEqual({*threading.enumerate()}, threads)


class TestBounds(LedgerTestCase):
    def test_old_rows_and_too_many_are_deleted_and_their_sums_stay(self) -> None:
        opened = self.ledger(max_rows=5, max_age_seconds=100.0)
        for number in range(8):
            opened.add(record(number))
        opened.flush()
        self.assertEqual(3, sum(opened.prune()))
        self.assertEqual([7, 6, 5, 4, 3], [row.number for row in self.rows()])
        self.now += 103
        opened.add(record(8, self.now))
        opened.flush()
        for _ in range(5):
            # Those that are too old go a tenth at a time.
            sum(opened.prune())
        self.assertEqual([8], [row.number for row in self.rows()])
        self.assertEqual(9, self.all_sums().requests)


class TestFaults(LedgerTestCase):
    def test_a_request_that_the_file_refuses_costs_no_other(self) -> None:
        opened = self.ledger()
        with (
            mock.patch.object(ledger.WaitingRequests, "seconds_between_batches", 60.0),
            self.assertLogs("deepseek_cursor_proxy.features.usage.ledger", logging.WARNING) as logs,
        ):
            for number in range(1, 6):
                opened.add(record(number, tokens=Tokens(10**30 if number in (2, 4) else 1, 0, 0)))
            opened.flush()
            opened.add(record(6))
            opened.flush()
        self.assertEqual([6, 5, 3, 1], [row.number for row in self.rows()])
        self.assertEqual(4, self.all_sums().requests)
        self.assertEqual(2, sum(int(line.rpartition(" ")[2]) for line in logs.output if "lost: " in line))

    def test_a_sum_that_is_full_stays_full_and_loses_no_request(self) -> None:
        opened = self.ledger()
        opened.add(record(1))
        opened.flush()
        most = 2**63 - 1
        with self.database.transaction() as connection:
            connection.execute("UPDATE usage_days SET hit = ?, output = ?", (most, most - 7))
        with self.assertNoLogs("deepseek_cursor_proxy.features.usage.ledger", logging.WARNING):
            opened.add(record(2))
            opened.flush()
        self.assertEqual([2, 1], [row.number for row in self.rows()])
        sums = self.all_sums()
        self.assertEqual((2, most, most - 2, 20), (sums.requests, sums.hit, sums.output, sums.miss))
