from unittest import mock

from deepseek_cursor_proxy.storage.database import Database
from deepseek_cursor_proxy.storage.learned import KeyNamespaces
from tests.support.databases import StoreTestCase
from tests.support.shared_engine import EngineTestCase

OLD, NEW, URL = b"old", b"new", "https://a"


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


class TestSharedNamespaces(EngineTestCase):
    def store(self, name: str) -> KeyNamespaces:
        instance = self.instance(name)
        return KeyNamespaces(instance.reasonings.database, instance.state.keep_first)

    def test_the_first_of_several_proxies_counts_for_all(self) -> None:
        one, two = self.store("one"), self.store("two")
        self.assertEqual(OLD, one.get("keys.ann", URL, OLD))
        self.assertEqual(OLD, two.get("keys.ann", URL, NEW))
        self.engine.stop()
        # The file knows by now.
        self.assertEqual(OLD, self.store("two").get("keys.ann", URL, NEW))

    def test_a_name_that_is_new_without_the_engine_is_asked_for_again(self) -> None:
        one, two = self.store("one"), self.store("two")
        self.assertEqual(OLD, one.get("keys.ann", URL, OLD))
        self.engine.stop()
        self.assertEqual(NEW, two.get("keys.ann", URL, NEW))
        self.engine.start()
        self.wait_until_shared()
        self.assertEqual(OLD, two.get("keys.ann", URL, NEW))
