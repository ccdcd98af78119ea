"""What the proxy learned: reasoning forms of upstreams, the namespaces of named keys.

Both are small tables that are read once and kept in memory. No answer ever fails because of them; a write that fails
waits, or is learned again after a restart.
"""

import threading
from collections.abc import Callable

from deepseek_cursor_proxy.storage.entries import Kind, Row
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.table import Table

# A user has a few upstreams; the table must not grow with every base URL ever tried.
_MOST_FORMS = 256
# More names than any proxy has.
_MOST_NAMES = 10_000
# One answer may be an accident: of a gateway with several servers, or of a model that writes about tags.
_CONFIRMING_ANSWERS = 2


class ReasoningForms(Table[Row]):
    """By base URL, the name under which an upstream of unknown kind sends its reasoning.

    A form is confirmed when two answers in a row show it; until then it is used only if the answer that showed it
    leaves no doubt, and never written. A row is written when another form is confirmed.

    Called by workers. The lock protects the dicts; two are read from the file once.
    """

    kind = Kind("reasoning_forms", "reasoning forms", ("base_url",), ("form",), writes_between_prunings=0)

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._lock = threading.Lock()
        # The forms in use.
        self._forms: dict[str, str] | None = None
        self._confirmed: dict[str, str] = {}
        # Forms of the last answers that are not confirmed, and how many showed them.
        self._pending: dict[str, tuple[str, int]] = {}

    def get(self, base_url: str) -> str | None:
        return self._all().get(base_url)

    def is_confirmed(self, base_url: str) -> bool:
        """Whether the form in use is confirmed, and the last answer showed no other."""
        return base_url not in self._pending and base_url in self._confirmed

    def learn(self, base_url: str, form: str, *, is_sure: bool) -> None:
        """Count an answer that showed a form; a sure one is used before it is confirmed."""
        known = self._all()
        with self._lock:
            if base_url not in known and len(known) >= _MOST_FORMS:
                return
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
            self.write(Row((base_url,), (form,)))

    def _all(self) -> dict[str, str]:
        if self._forms is None:
            found = dict(self.get_all(_MOST_FORMS))
            with self._lock:
                # Another thread may have been first, and may have learned since.
                if self._forms is None:
                    self._confirmed, self._forms = dict(found), found
        return self._forms


class KeyNamespaces(Table[Row]):
    """By name of a key or group and by base URL, the namespace of the key with which the name was first used.

    So a key that gets a name keeps its reasoning, and a name that gets another key does, too. Called by workers; if two
    threads look a name up, both find the same.
    """

    kind = Kind("key_names", "names of keys", ("name", "base_url"), ("namespace",), writes_between_prunings=0)

    def __init__(self, database: Database, keep_first: Callable[[str, bytes], bytes | None] | None = None) -> None:
        """`keep_first` asks an engine that several proxies share; it returns None if that does not answer."""
        super().__init__(database)
        self._keep_first = keep_first
        self._known: dict[tuple[str, str], bytes] = {}

    def get(self, name: str, base_url: str, own: bytes) -> bytes:
        """The namespace of a name; from now on `own`, if it has none."""
        key = (name, base_url)
        if (known := self._known.get(key)) is not None:
            return known
        # Another process may have added names.
        in_file: dict[tuple[str, str], bytes] = {
            (*found,): namespace for *found, namespace in self.get_all(_MOST_NAMES)
        }
        if key not in in_file:
            written = self.write(Row(key, (own,), keeps_first=True))
            if written is None:
                # The file cannot be written; another process may have another namespace for the name.
                return own
            in_file[key] = written[0]
        if self._keep_first is None:
            self._known.update(in_file)
        elif (first := self._keep_first(f"{name} {base_url}", in_file[key])) is not None:
            if first != in_file[key]:
                self.write(Row(key, (first,)))
            self._known[key] = in_file[key] = first
        return in_file[key]
