"""What the ledger knows, as JSON: GET /api/usage, the sums of today, and requests that are no longer in memory.

The ledger may have hundreds of thousands of rows, so it is read over a connection of its own: no lookup of a chat waits
for it. One thread reads at a time, and a report serves for some seconds, however many pages ask for it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.admin.context import AdminContext
from deepseek_cursor_proxy.errors import BadRequest, Overloaded
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.storage.sqlite import usage_rows
from deepseek_cursor_proxy.storage.sqlite.database import Database, open_read_only
from deepseek_cursor_proxy.usage.prices import PriceList
from deepseek_cursor_proxy.usage.report import GROUPS, Period, make_report, sum_day

_DEFAULT_DAYS = 30


def report(context: AdminContext, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The sums that a query asks for; BadRequest for one that makes no sense, Overloaded for a store that fails."""
    period, by = _period(parameters), parameters.get("by", "day")
    if by not in GROUPS:
        raise BadRequest(f"The parameter by is none of {', '.join(GROUPS)}.", param="by")
    return _read(
        context, (period, by), lambda connection, prices: make_report(connection, period, by, prices).as_json()
    )


def today(context: AdminContext) -> dict[str, Any]:
    day = date.today()
    return _read(context, day, lambda connection, prices: sum_day(connection, day, prices.currency).sums_json())


def _read(context: AdminContext, key: object, read: Callable[[usage_rows.Reader, PriceList], Any]) -> dict[str, Any]:
    services = context.services()

    def compute() -> Any:
        with ledger_connection(services.reasoning_store.database) as connection:
            return read(connection, services.prices)

    value: dict[str, Any] = context.reports.read((key, services.config.currency), compute)
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
