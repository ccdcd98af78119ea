"""GET /api/requests: requests that ended, newest first, page by page: those in memory, then those of the ledger.

The id of a request in memory is its number; numbers begin anew with every start, so one of the ledger has the negative
id of its row. A page begins after the id `before`, of either kind: a request may have left the memory meanwhile.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.admin.json_api import requests
from deepseek_cursor_proxy.admin.json_api.usage import ledger_connection
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.observers.request_log import RequestLog, RequestRecord
from deepseek_cursor_proxy.storage import usage_rows
from deepseek_cursor_proxy.storage.engine.database import Database
from deepseek_cursor_proxy.storage.usage_rows import UsageRow

_PAGE, _LARGEST_PAGE = 50, 500
_FILTERS = ("model", "key", "outcome")


class RequestPages:
    """Called by the threads of the listener; `started_at` is when this run of the proxy began."""

    def __init__(self, log: RequestLog, database: Database, started_at: float) -> None:
        self._log = log
        self._database = database
        self._started_at = started_at

    def page(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The page that a query asks for; BadRequest for a number that is none."""
        limit = max(1, min(_number(parameters, "limit") or _PAGE, _LARGEST_PAGE))
        before = _number(parameters, "before")
        wanted = {name: parameters[name] for name in _FILTERS if name in parameters}
        rows = self._from_memory(before, wanted) if before is None or before >= 0 else []
        if len(rows) <= limit:
            rows += self._from_ledger(before, wanted, limit + 1 - len(rows))
        shown = rows[:limit]
        return {"requests": shown, "next_before": shown[-1]["id"] if len(rows) > limit else None}

    def find(self, id: int) -> UsageRow | None:
        """The row of the ledger with this negative id."""
        with ledger_connection(self._database) as connection:
            return usage_rows.find(connection, -id)

    def _from_memory(self, before: int | None, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
        records = self._log.ended(before, sys.maxsize)
        return [requests.row(each) for each in records if _matches(each, wanted)]

    def _from_ledger(self, before: int | None, wanted: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
        # By the very time that the ledger has: no order of times would do, because the clock may be set back.
        in_memory = {(each.number, each.ended_at) for each in self._log.ended(limit=sys.maxsize)}
        with ledger_connection(self._database) as connection:
            before_id = -before if before is not None and before < 0 else None
            if before is not None and before >= 0 and all(number != before for number, _ in in_memory):
                before_id = usage_rows.find_id(connection, before, self._started_at)
            rows = usage_rows.read_page(connection, limit + len(in_memory), before_id, wanted)
        others = [each for each in rows if (each.number, each.ended_at) not in in_memory]
        return [requests.ledger_row(each) for each in others[:limit]]


def _matches(record: RequestRecord, wanted: Mapping[str, str]) -> bool:
    values = {"model": record.facts.model, "key": record.facts.key, "outcome": record.result.value}
    return all(values[name] == value for name, value in wanted.items())


def _number(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not re.fullmatch("-?[0-9]{1,15}", text):
        raise BadRequest(f"The parameter {name} is not a whole number.", param=name)
    return int(text)
