"""ReasoningForms: by base URL, the name under which an upstream of unknown kind sends its reasoning.

SQL: table `reasoning_forms`, a row per upstream that is not known by its name, written when its form changes; a write
that fails is learned again from the next answer. No answer ever fails because of it.
"""

import logging
import threading

from deepseek_cursor_proxy.storage.engine.database import Database
from deepseek_cursor_proxy.storage.engine.faults import FaultGuard

_log = logging.getLogger(__name__)

# A user has a few upstreams; the table must not grow with every base URL ever tried.
_MOST_FORMS = 256


class ReasoningForms:
    """Called by handler threads. The lock protects `_forms`, read from the file once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._forms: dict[str, str] | None = None
        self._faults = FaultGuard(_log, "reasoning forms")

    def get(self, base_url: str) -> str | None:
        return self._all().get(base_url)

    def learn(self, base_url: str, form: str) -> None:
        known = self._all()
        with self._lock:
            if known.get(base_url) == form or (base_url not in known and len(known) >= _MOST_FORMS):
                return
            known[base_url] = form
        with self._faults.guard("record"), self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO reasoning_forms (base_url, form) VALUES (?, ?) "
                "ON CONFLICT (base_url) DO UPDATE SET form = excluded.form",
                (base_url, form),
            )

    def _all(self) -> dict[str, str]:
        if self._forms is None:
            found = self._read()
            with self._lock:
                # Another thread may have read and learned meanwhile.
                self._forms = self._forms if self._forms is not None else found
        return self._forms

    def _read(self) -> dict[str, str]:
        with self._faults.guard("look up"), self._database.reader() as connection:
            rows = connection.execute("SELECT base_url, form FROM reasoning_forms LIMIT ?", (_MOST_FORMS,))
            return dict(rows.fetchall())
        return {}
