from deepseek_cursor_proxy.storage.answers import PictureDescriptions
from deepseek_cursor_proxy.storage.sqlite import rows
from tests.support.databases import StoreTestCase

ANN, BEN = b"a" * 32, b"b" * 32
DAY = 24 * 3600.0


class TestPictureDescriptions(StoreTestCase):
    store_type = PictureDescriptions

    def uses(self) -> dict[bytes, float]:
        return dict(self.select("SELECT picture, used_at FROM picture_descriptions"))

    def test_a_description_is_found_after_a_restart(self) -> None:
        self.assertEqual({}, self.store.find(ANN, [b"1"]))
        self.assertEqual("a window\ud800", self.store.record(ANN, b"1", "a window\ud800"))
        self.restart()
        self.assertEqual({b"1": "a window\ud800"}, self.store.find(ANN, [b"1", b"2"]))

    def test_a_description_is_found_by_its_caller_alone(self) -> None:
        self.store.record(ANN, b"1", "a window")
        self.assertEqual({}, self.store.find(BEN, [b"1"]))

    def test_the_first_description_of_a_picture_counts(self) -> None:
        self.store.record(ANN, b"1", "a window")
        self.assertEqual("a window", self.store.record(ANN, b"1", "another process saw a door"))
        self.assertEqual({b"1": "a window"}, self.store.find(ANN, [b"1"]))

    def test_many_pictures_are_found_at_once(self) -> None:
        names = [b"%d" % number for number in range(rows._KEYS_PER_QUERY + 1)]
        for name in (names[0], names[-1]):
            self.store.record(ANN, name, "text")
        self.assertEqual({names[0]: "text", names[-1]: "text"}, self.store.find(ANN, names))

    def test_a_use_is_written_once_a_day(self) -> None:
        self.store.record(ANN, b"1", "a window")
        began = self.now
        for age, written in ((DAY / 2, 0.0), (DAY, DAY), (1.5 * DAY, DAY), (2 * DAY, 2 * DAY)):
            self.now = began + age
            self.store.find(ANN, [b"1"])
            with self.subTest(age):
                self.assertEqual({b"1": began + written}, self.uses())

    def test_pruning_deletes_what_is_too_old_and_the_longest_unused_of_too_many(self) -> None:
        store = self.store_on(self.database, max_age_seconds=10 * DAY, max_rows=2)
        for name in (b"old", b"1", b"2", b"3"):
            store.record(ANN, name, "text")
            self.now += 20 * DAY if name == b"old" else 1.0
        self.assertEqual(2, store.prune())
        self.assertEqual({b"2", b"3"}, self.uses().keys())

    def test_descriptions_are_pruned_in_the_background(self) -> None:
        def write() -> None:
            for number in range(PictureDescriptions.kind.writes_between_prunings):
                self.store.record(ANN, b"%d" % number, "text")

        self.assert_prunes_on_another_thread(self.store, write)

    def test_what_a_failing_file_does_not_take_is_found_until_the_proxy_stops(self) -> None:
        self.database.close()
        self.assertEqual("a window", self.store.record(ANN, b"1", "a window"))
        self.assertEqual({b"1": "a window"}, self.store.find(ANN, [b"1"]))
        self.assertEqual({}, self.store.find(BEN, [b"1"]))
