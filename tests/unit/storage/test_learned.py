from unittest import mock

from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.learned import KeyNamespaces, ReasoningForms
from tests.support.databases import StoreTestCase

URL = "http://127.0.0.1:8000/v1"
OLD, NEW = b"old", b"new"


class TestReasoningForms(StoreTestCase):
    def store_on(self, database: Database, **limits: object) -> ReasoningForms:
        return ReasoningForms(database)

    def rows(self) -> dict[str, str]:
        return dict(self.select("SELECT base_url, form FROM reasoning_forms"))

    def learn(self, *forms: str, url: str = URL, is_sure: bool = False) -> None:
        for form in forms:
            self.store.learn(url, form, is_sure=is_sure)

    def test_two_answers_in_a_row_confirm_a_form(self) -> None:
        self.assertIsNone(self.store.get(URL))
        known = None
        for form, after in (
            ("think", None), ("reasoning", None), ("think", None), ("think", "think"), ("think", "think"),
            ("reasoning", "think"), ("think", "think"), ("reasoning", "think"), ("reasoning", "reasoning"),
        ):  # fmt: skip
            self.learn(form)
            known = after or known
            self.assertEqual((after, {URL: known} if known else {}), (self.store.get(URL), self.rows()))
        self.assertIsNone(self.store.get("http://127.0.0.1:8001/v1"))

    def test_a_sure_form_is_used_at_once_and_kept_when_confirmed(self) -> None:
        self.learn("think", "think")
        self.learn("reasoning", is_sure=True)
        self.assertEqual(("reasoning", {URL: "think"}), (self.store.get(URL), self.rows()))
        self.assertFalse(self.store.is_confirmed(URL))
        self.learn("reasoning", is_sure=True)
        self.assertEqual({URL: "reasoning"}, self.rows())
        self.assertTrue(self.store.is_confirmed(URL))

    def test_a_confirmed_form_survives_a_restart(self) -> None:
        self.learn("think", is_sure=True)
        self.assertIsNone(ReasoningForms(self.database).get(URL))
        self.learn("reasoning", "reasoning")
        self.assertEqual("reasoning", ReasoningForms(self.database).get(URL))

    def test_a_file_that_cannot_be_written_is_no_failure(self) -> None:
        self.database.close()
        self.learn("reasoning", "reasoning")
        self.assertEqual("reasoning", self.store.get(URL))


class TestKeyNamespaces(StoreTestCase):
    def store_on(self, database: Database, **limits: object) -> KeyNamespaces:
        return KeyNamespaces(database)

    def test_a_name_keeps_the_namespace_of_its_first_key(self) -> None:
        self.assertEqual(OLD, self.store.get("keys.ann", URL, OLD))
        self.assertEqual(OLD, self.store.get("keys.ann", URL, NEW))
        self.restart()
        self.assertEqual(OLD, self.store.get("keys.ann", URL, NEW))
        self.assertEqual(NEW, self.store.get("keys.ben", URL, NEW))
        self.assertEqual(NEW, self.store.get("keys.ann", "https://b", NEW))

    def test_two_processes_agree_on_the_first_key(self) -> None:
        other = self.store_on(self.open())
        self.assertEqual(OLD, self.store.get("keys.ann", URL, OLD))
        # Both have looked before either writes.
        with mock.patch.object(other._database, "select", return_value=[]):
            self.assertEqual(OLD, other.get("keys.ann", URL, NEW))

    def test_a_file_that_cannot_be_written_fails_no_request(self) -> None:
        self.database.close()
        self.assertEqual(NEW, self.store.get("keys.ann", URL, NEW))
