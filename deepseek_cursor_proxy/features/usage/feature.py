"""Usage: the feature in a running proxy.

The ledger may have hundreds of thousands of rows, so it is read over a connection of its own: no lookup of a chat waits
for it. One thread reads at a time, and a report serves for some seconds, however many pages ask for it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.exchange.feature import Feature, Recent
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from deepseek_cursor_proxy.features.usage import ledger
from deepseek_cursor_proxy.features.usage.ledger import UsageLedger
from deepseek_cursor_proxy.storage.database import Database, open_read_only
from deepseek_cursor_proxy.storage.faults import Unusable

_REPORT_SECONDS = 5.0


class Usage(Feature):
    name = "usage"
    views = ("usage",)

    def __init__(self, database: Database) -> None:
        # Has requests from the request log.
        self.ledger = UsageLedger(database)
        self._reports = Recent(_REPORT_SECONDS)

    def flush(self) -> None:
        self.ledger.flush()

    def facts(self, services: Services) -> Mapping[str, Any]:
        """The sums of today, by this machine's clock; null while the store cannot be read."""
        # Imported late: most proxies are never asked.
        from deepseek_cursor_proxy.features.usage.report import sum_day

        day = date.today()
        with suppress(Overloaded):
            read = self.read(services, day, lambda reader: sum_day(reader, day, services.prices.currency).sums_json())
            return {"today": read}
        return {"today": None}

    def read(self, services: Services, key: object, read: Callable[[ledger.Reader], Any]) -> Any:
        """What a function reads of the ledger, by a key for its question; Overloaded for a store that fails."""

        def compute() -> Any:
            self.ledger.flush()
            with ledger_connection(services.reasoning_store.database) as reader:
                return read(reader)

        return self._reports.read((key, services.config.currency), compute)

    def close(self) -> None:
        self.ledger.close()


@contextmanager
def ledger_connection(database: Database) -> Iterator[ledger.Reader]:
    """A connection for reading; Overloaded for a store that cannot be used."""
    try:
        if database.path == ":memory:":
            with database.reader() as connection:
                yield connection
        else:
            with open_read_only(Path(database.path), "usage") as connection:
                yield connection
    except (Unusable, FileNotFoundError) as error:
        raise Overloaded(f"The store cannot be read: {error}.", retry_after=5) from None


def open(services: Services) -> Services:
    usage = Usage(services.reasoning_store.database)
    services.get(RequestLog).subscribe(usage.ledger.add)
    services.access.ask_before(usage.ledger.was_accepted_before)
    return services.add(usage)
