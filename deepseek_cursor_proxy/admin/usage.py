"""What the ledger knows, as JSON: GET /api/usage, the sums of today, and requests that are no longer in memory.

The ledger may have hundreds of thousands of rows, so it is read over a connection of its own: no lookup of a chat waits
for it. One thread reads at a time, and a report serves for some seconds, however many pages ask for it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.errors import BadRequest, Overloaded
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.sqlite import usage_rows
from deepseek_cursor_proxy.storage.sqlite.database import Database, open_read_only
from deepseek_cursor_proxy.usage.report import GROUPS, Period, make_report, sum_day

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services

_VALID_SECONDS = 5.0
_MOST_REPORTS = 16
_DEFAULT_DAYS = 30


class UsageReader:
    """Called by the threads of the listener. The lock protects the recent answers, and lets one thread read."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._recent: dict[object, tuple[float, dict[str, Any]]] = {}

    def report(self, services: "Services", parameters: Mapping[str, str]) -> dict[str, Any]:
        """The sums that a query asks for; BadRequest for one that makes no sense, Overloaded for a store that fails."""
        period, by, currency = _period(parameters), parameters.get("by", "day"), services.config.currency
        if by not in GROUPS:
            raise BadRequest(f"The parameter by is none of {', '.join(GROUPS)}.", param="by")
        return self._read(
            (period, by, currency),
            services.reasoning_store.database,
            lambda connection: make_report(connection, period, by, currency).as_json(),
        )

    def today(self, services: "Services") -> dict[str, Any]:
        day, currency = date.today(), services.config.currency
        return self._read(
            (day, currency),
            services.reasoning_store.database,
            lambda connection: sum_day(connection, day, currency).sums_json(),
        )

    def _read(
        self, key: object, database: Database, read: Callable[[usage_rows.Reader], dict[str, Any]]
    ) -> dict[str, Any]:
        with self._lock:
            found = self._recent.get(key)
            if found is not None and self._now() - found[0] < _VALID_SECONDS:
                return found[1]
            with ledger_connection(database) as connection:
                value = read(connection)
            while len(self._recent) >= _MOST_REPORTS:
                del self._recent[next(iter(self._recent))]
            self._recent[key] = self._now(), value
            return value


@contextmanager
def ledger_connection(database: Database) -> Iterator[usage_rows.Reader]:
    """A connection for reading; Overloaded for a store that cannot be used."""
    try:
        if database.path == ":memory:":
            with database.reader() as connection:
                yield connection
        else:
            with open_read_only(Path(database.path)) as connection:
                yield connection
    except (Unusable, FileNotFoundError) as error:
        raise Overloaded(f"The store cannot be read: {error}.", retry_after=5) from None


def _period(parameters: Mapping[str, str]) -> Period:
    until = _day(parameters, "until") or date.today()
    since = _day(parameters, "since") or date.fromordinal(max(1, until.toordinal() - _DEFAULT_DAYS + 1))
    if since > until:
        raise BadRequest("The parameter since is after until.", param="since")
    return Period(since, until)


def _day(parameters: Mapping[str, str], name: str) -> date | None:
    text = parameters.get(name)
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"The parameter {name} is no day such as 2026-11-01.", param=name) from None
