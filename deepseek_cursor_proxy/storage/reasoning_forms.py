"""ReasoningForms: by base URL, the name under which an upstream of unknown kind sends its reasoning.

A form is confirmed when two answers in a row show it; until then it is used only if the answer that showed it leaves no
doubt, and never written. There is a row per upstream that is not known by its name, written when
another form is confirmed; a write that fails is learned again after a restart. No answer ever fails because of it.
"""

import threading

from deepseek_cursor_proxy.storage.entries import Kind, Row
from deepseek_cursor_proxy.storage.sqlite.database import Database
from deepseek_cursor_proxy.storage.table import Table

# A user has a few upstreams; the table must not grow with every base URL ever tried.
_MOST_FORMS = 256
# One answer may be an accident: of a gateway with several servers, or of a model that writes about tags.
_CONFIRMING_ANSWERS = 2


class ReasoningForms(Table[Row]):
    """Called by handler threads. The lock protects the dicts; two are read from the file once."""

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
                # Another thread may have read and learned meanwhile.
                if self._forms is None:
                    self._confirmed, self._forms = dict(found), found
        return self._forms
