from deepseek_cursor_proxy.storage import reasoning_forms
from deepseek_cursor_proxy.storage.engine.database import Database
from deepseek_cursor_proxy.storage.reasoning_forms import ReasoningForms
from tests.support.databases import StoreTestCase

URL = "http://127.0.0.1:8000/v1"


class TestReasoningForms(StoreTestCase):
    def store_on(self, database: Database, **limits: object) -> ReasoningForms:
        return ReasoningForms(database)

    def rows(self) -> dict[str, str]:
        return dict(self.select("SELECT base_url, form FROM reasoning_forms"))

    def test_the_last_form_of_a_base_url_is_kept(self) -> None:
        self.assertIsNone(self.store.get(URL))
        for form in ("think", "reasoning", "reasoning"):
            self.store.learn(URL, form)
            self.assertEqual((form, {URL: form}), (self.store.get(URL), self.rows()))
        self.assertIsNone(self.store.get("http://127.0.0.1:8001/v1"))

    def test_the_form_survives_a_restart(self) -> None:
        self.store.learn(URL, "reasoning")
        self.assertEqual("reasoning", ReasoningForms(self.database).get(URL))

    def test_the_number_of_forms_is_limited(self) -> None:
        for number in range(reasoning_forms._MOST_FORMS + 10):
            self.store.learn(f"{URL}/{number}", "reasoning")
        self.assertEqual(reasoning_forms._MOST_FORMS, len(self.rows()))

    def test_a_file_that_cannot_be_written_is_no_failure(self) -> None:
        self.database.close()
        self.store.learn(URL, "reasoning")
        self.assertEqual("reasoning", self.store.get(URL))
