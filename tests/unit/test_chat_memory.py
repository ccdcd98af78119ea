import itertools
import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy import chat_memory
from deepseek_cursor_proxy.chat_memory import MAX_ITEMS, NO_MEMORY, ChatMemory, Stage
from tests.support.threads import run_at_once

STAGE: Stage[Any, str] = Stage("test", lambda item: 1000)
OTHER: Stage[Any, str] = Stage("other", lambda item: 1000)


def items(count: int) -> list[object]:
    return [object() for _ in range(count)]


class ChatMemoryTest(unittest.TestCase):
    def setUp(self) -> None:
        self.memory = ChatMemory(1_000_000)
        self.items = items(20)

    def known(self, some: Any, stage: "Stage[Any, str]" = STAGE, conditions: object = None) -> tuple[int, str | None]:
        lookup = self.memory.look_up(stage, some, conditions)
        return lookup.count, lookup.result

    def store(self, some: Any, result: str, stage: "Stage[Any, str]" = STAGE, conditions: object = None) -> None:
        self.memory.look_up(stage, some, conditions).store(result)

    def held(self) -> int:
        return sum(entry.size for entry in self.memory._entries)

    def test_a_list_continues_the_longest_known_beginning(self) -> None:
        for count in (9, 12, 10):
            # Not by way of a shorter one, which it would replace.
            chat_memory.Lookup(self.memory, STAGE, self.items[:count], None).store(f"first {count}")
        self.assertEqual((12, "first 12"), self.known(self.items))
        self.assertEqual((10, "first 10"), self.known(self.items[:11]))
        self.assertEqual((0, None), self.known(self.items[1:]))

    def test_a_longer_list_replaces_its_beginning(self) -> None:
        self.store(self.items[:9], "nine")
        self.store(self.items, "twenty")
        self.assertEqual(["twenty"], [entry.result for entry in self.memory.entries(STAGE)])
        self.assertEqual((0, None), self.known(self.items[:9]))

    def test_equal_items_are_not_the_same(self) -> None:
        known = [[number] for number in range(9)]
        self.store(known, "known")
        self.assertEqual((9, "known"), self.known(known))
        self.assertEqual((0, None), self.known([each.copy() for each in known]))

    def test_stages_and_conditions_have_results_of_their_own(self) -> None:
        self.store(self.items, "one's", conditions="one")
        self.assertEqual((0, None), self.known(self.items, conditions="other"))
        self.assertEqual((0, None), self.known(self.items, OTHER, conditions="one"))
        self.assertEqual((20, "one's"), self.known(self.items, conditions="one"))

    def test_all_stages_share_one_budget_and_the_least_recently_used_leave(self) -> None:
        self.memory = ChatMemory(1_000_000, itertools.count(0, 60).__next__)
        chats = [items(15) for _ in range(200)]
        often = items(15)
        for chat in chats:
            for stage in (STAGE, OTHER):
                self.store(chat, "some", stage)
                self.store(often, "often", stage)
            self.assertEqual(self.held(), self.memory._size)
            self.assertLessEqual(self.held(), 1_000_000)
        self.assertEqual((15, "often"), self.known(often))
        counts = [self.known(chat)[0] for chat in chats]
        self.assertEqual(sorted(counts), counts)
        self.assertLess(20, counts.count(15))

    def test_of_more_busy_chats_than_fit_most_stay_known(self) -> None:
        # A round of all chats every second; each has room for its entries in two stages.
        clock = iter(second for second in range(1000) for _ in range(80))
        self.memory = ChatMemory(1_000_000, clock.__next__)
        chats = [items(15) for _ in range(40)]
        for _ in range(5):
            known = []
            for chat in chats:
                known.append(self.known(chat)[0])
                for stage in (STAGE, OTHER):
                    self.store(chat, "some", stage)
        self.assertLessEqual(25, known.count(15), "the least recently used leave: all are forgotten before they return")
        self.assertLessEqual(self.held(), 1_000_000)

    def test_a_new_chat_takes_the_place_of_idle_ones(self) -> None:
        now = [0.0]
        self.memory = ChatMemory(110_000, lambda: now[0])
        old, busy, new = [items(20) for _ in range(4)], items(20), items(20)
        for chat in (*old, busy):
            self.store(chat, "known")
        now[0] = 30.0
        self.store(new, "no room")
        self.store(busy, "known")
        self.assertEqual(0, self.known(new)[0])
        now[0] = 61.0
        self.store(new, "room")
        self.assertEqual([0, 20, 20, 20, 20, 20], [self.known(chat)[0] for chat in (*old, busy, new)])

    def test_the_budget_is_a_share_of_the_machine_within_bounds(self) -> None:
        for machine, megabytes in ((0, 64), (2 << 30, 64), (4 << 30, 128), (8 << 30, 256), (64 << 30, 256)):
            with self.subTest(machine), mock.patch.object(chat_memory, "_machine_bytes", return_value=machine):
                self.assertEqual(megabytes << 20, ChatMemory()._max_bytes)
        self.assertGreater(chat_memory._machine_bytes(), -1)

    def test_the_number_of_entries_is_bounded_too(self) -> None:
        self.memory = ChatMemory(10**9)
        for _ in range(400):
            self.store(items(8), "small")
        self.assertEqual(chat_memory._MAX_ENTRIES, len(self.memory._entries))

    def test_an_entry_that_is_too_large_is_not_counted_to_its_end_and_evicts_nothing(self) -> None:
        self.store(self.items, "small")
        counted: list[int] = []
        large: Stage[int, str] = Stage("large", lambda item: counted.append(item) or 150_000)  # type: ignore[func-returns-value]
        self.memory.look_up(large, range(1000)).store("large")
        self.assertEqual([0, 1], counted)
        self.memory.look_up(STAGE, items(8)).store("a large result", 300_000)
        self.assertEqual(["small"], [entry.result for entry in self.memory._entries])

    def test_lists_shorter_or_longer_than_a_chat_are_not_remembered(self) -> None:
        self.memory, tiny = ChatMemory(100_000_000), Stage[int, str]("tiny", lambda item: 1)
        for count, known in ((7, 0), (8, 8), (MAX_ITEMS, MAX_ITEMS), (MAX_ITEMS + 1, 0)):
            some = tuple(range(1000, 1000 + count))
            self.memory.look_up(tiny, some).store("chat")
            self.assertEqual(known, self.memory.look_up(tiny, some).count)

    def test_no_memory_remembers_nothing(self) -> None:
        empty: Stage[object, str] = Stage("empty", lambda item: 0)
        NO_MEMORY.look_up(empty, self.items).store("x")
        self.assertEqual(0, NO_MEMORY.look_up(empty, self.items).count)

    def test_threads_that_use_it_at_once_find_right_results_within_the_budget(self) -> None:
        chats = [items(30) for _ in range(10)]
        wrong: list[object] = []

        def use(start: int) -> None:
            for turn in range(400):
                number = (start + turn) % len(chats)
                lookup = self.memory.look_up(STAGE, chats[number][: 8 + turn % 22])
                if lookup.result not in (None, f"{number}: {lookup.count}"):
                    wrong.append(lookup)
                lookup.store(f"{number}: {len(lookup.items)}")

        run_at_once(use, range(4))
        self.assertEqual([], wrong)
        self.assertEqual(self.held(), self.memory._size)
        self.assertLessEqual(self.held(), 1_000_000)
