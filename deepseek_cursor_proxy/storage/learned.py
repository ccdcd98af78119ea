"""What the proxy learned: reasoning forms of upstreams, the namespaces of named keys.

Both are small tables that are read once and kept in memory. A form that cannot be written is learned again after a
restart, and a namespace is written when its name is next used.
"""

import logging
import threading
from collections.abc import Callable

from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.faults import FaultGuard

_log = logging.getLogger(__name__)

# One answer may be an accident: of a gateway with several servers, or of a model that writes about tags.
_CONFIRMING_ANSWERS = 2


class ReasoningForms:
    """By base URL, the form in which an upstream's answers have their reasoning; `exchange/upstreams` learns it.

    A form is confirmed when two answers in a row show it; until then it is used only if the answer that showed it
    leaves no doubt, and never written. A row is written when another form is confirmed.

    Called by any thread. The lock protects the dicts; two are read from the file once.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._faults = FaultGuard(_log, "reasoning forms")
        self._lock = threading.Lock()
        # The forms in use.
        self._forms: dict[str, str] | None = None
        self._confirmed: dict[str, str] = {}
        # Forms of the last answers that are not confirmed, and how many showed them.
        self._pending: dict[str, tuple[str, int]] = {}

    def get(self, base_url: str) -> str | None:
        return (self._read() if self._forms is None else self._forms).get(base_url)

    def is_confirmed(self, base_url: str) -> bool:
        """Whether the form in use is confirmed, and the last answer showed no other."""
        return base_url not in self._pending and base_url in self._confirmed

    def learn(self, base_url: str, form: str, *, is_sure: bool) -> None:
        """Count an answer that showed a form; a sure one is used before it is confirmed."""
        known = self._read() if self._forms is None else self._forms
        with self._lock:
            last, count = self._pending.pop(base_url, ("", 0))
            count = count + 1 if last == form else 1
            was_confirmed = self._confirmed.get(base_url) == form
            is_confirmed = was_confirmed or count >= _CONFIRMING_ANSWERS
            if is_confirmed or is_sure:
                known[base_url] = form
            if not is_confirmed:
                self._pending[base_url] = form, count
                return
            self._confirmed[base_url] = form
        if not was_confirmed:
            with self._faults.guard("record"), self._database.transaction() as connection:
                connection.execute("INSERT OR REPLACE INTO reasoning_forms VALUES (?, ?)", (base_url, form))

    def _read(self) -> dict[str, str]:
        found: dict[str, str] = {}
        with self._faults.guard("look up"):
            found = dict(self._database.select("SELECT base_url, form FROM reasoning_forms"))
        with self._lock:
            # Another thread may have been first, and may have learned since.
            if self._forms is None:
                self._confirmed, self._forms = dict(found), found
            return self._forms


class KeyNamespaces:
    """By name of a key or group and by base URL, the namespace of the key with which the name was first used.

    So a key that gets a name keeps its reasoning, and a name that gets another key does, too. Called by any
    thread; if two look a name up, both find the same.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._faults = FaultGuard(_log, "names of keys")
        # Asks an engine that several proxies share; it returns None if that does not answer.
        self.set_if_absent: Callable[[str, bytes], bytes | None] | None = None
        self._known: dict[tuple[str, str], bytes] = {}

    def get(self, name: str, base_url: str, own: bytes) -> bytes:
        """The namespace of a name; from now on `own`, if it has none."""
        key = (name, base_url)
        if (known := self._known.get(key)) is not None:
            return known
        found = None
        with self._faults.guard("record"):
            found = self._find_or_insert(key, own)
        if found is None:
            # The file cannot be used; another process may have another namespace for the name.
            return own
        first = found if self.set_if_absent is None else self.set_if_absent(f"{name} {base_url}", found)
        if first is None:
            return found
        if first != found:
            with self._faults.guard("record"), self._database.transaction() as connection:
                connection.execute("INSERT OR REPLACE INTO key_names VALUES (?, ?, ?)", (*key, first))
        self._known[key] = first
        return first

    def _find_or_insert(self, key: tuple[str, str], own: bytes) -> bytes:
        query = "SELECT namespace FROM key_names WHERE name = ? AND base_url = ?"
        if not (found := self._database.select(query, *key)):
            with self._database.transaction() as connection:
                # Another process may have been first.
                connection.execute("INSERT OR IGNORE INTO key_names VALUES (?, ?, ?)", (*key, own))
                found = connection.execute(query, key).fetchall()
        namespace: bytes = found[0][0]
        return namespace
