import logging
from collections.abc import Sequence
from unittest import mock

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.reasoning.chats import store as conversation_store
from deepseek_cursor_proxy.reasoning.chats.divergence import RequestOutline
from deepseek_cursor_proxy.reasoning.chats.store import ChatBranch, ChatStore
from deepseek_cursor_proxy.storage import table
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.support.databases import StoreTestCase
from tests.support.histories import assistant, system, user
from tests.support.threads import run_at_once
from tests.unit.reasoning.chats.test_divergence import CHAT, NEXT, seen

DAY = 24 * 3600
TITLE = (system("Make a title."), CHAT[1])


class ChatStoreTestCase(StoreTestCase):
    store_type = ChatStore

    def accept(self, messages: Sequence[Message], tools: str, chat: bytes = b"chat") -> ChatBranch | None:
        """A request that went out with its tools in this order; the branch it was found to belong to."""
        outline = seen(messages, tools)
        found = self.store.find(chat, outline)
        self.store.record(chat, found, outline, tuple(tools))
        return found

    def found(self, messages: Sequence[Message], tools: str, chat: bytes = b"chat") -> str | None:
        branch = self.store.find(chat, seen(messages, tools))
        return None if branch is None else "".join(branch.order)

    def rows(self) -> list[str]:
        self.store.flush()
        return [names for (names,) in self.select("SELECT names FROM tool_orders ORDER BY used_at, id")]

    def changes(self) -> int:
        self.store.flush()
        with self.database.reader() as connection:
            return connection.total_changes


class TestConversationStore(ChatStoreTestCase):
    def test_what_was_accepted_is_found_by_the_next_request(self) -> None:
        self.assertIsNone(self.accept(CHAT, "ba"))
        branch = self.accept((*CHAT, *NEXT), "ab")
        assert branch is not None
        self.assertEqual((("b", "a"), seen(CHAT, "ba")), (branch.order, branch.last))
        self.assertIsNone(self.found(CHAT, "ab", chat=b"another chat"))

    def test_the_order_survives_a_restart_and_the_outline_does_not(self) -> None:
        self.accept(CHAT, "cab")
        self.restart()
        branch = self.store.find(b"chat", seen((*CHAT, *NEXT), "abc"))
        assert branch is not None
        self.assertEqual((("c", "a", "b"), None), (branch.order, branch.last))
        self.assertEqual(['["c", "a", "b"]'], self.rows())

    def test_only_a_changed_order_is_written(self) -> None:
        self.accept(CHAT, "ba")
        before = self.changes()
        for length in range(3, 6):
            self.accept((*CHAT, *NEXT * length), "ba")
        self.assertEqual(before, self.changes())
        self.accept((*CHAT, *NEXT * 6), "bac")
        self.assertEqual(['["b", "a", "c"]'], self.rows())

    def test_new_orders_of_several_chats_share_one_transaction(self) -> None:
        self.enterContext(mock.patch.object(table, "_SECONDS_BETWEEN_BATCHES", 3600))
        with mock.patch.object(self.database, "transaction", wraps=self.database.transaction) as transaction:
            for chat in (b"1", b"2", b"3"):
                self.accept(CHAT, "ba", chat)
            transaction.assert_not_called()
            self.assertEqual(3, len(self.rows()))
            transaction.assert_called_once()

    def test_a_use_is_written_once_a_day(self) -> None:
        self.accept(CHAT, "ba")
        self.now += 2 * DAY
        self.accept(CHAT, "ba")
        before = self.changes()
        self.accept(CHAT, "ba")
        self.assertEqual(before, self.changes())
        self.store.flush()
        self.assertEqual([(self.now,)], self.select("SELECT used_at FROM tool_orders"))

    def test_a_request_without_tools_leaves_the_order_alone(self) -> None:
        self.accept(CHAT, "ba")
        self.accept((*CHAT, *NEXT), "")
        self.assertEqual("ba", self.found((*CHAT, *NEXT), "ab"))
        self.restart()
        self.assertEqual("ba", self.found((*CHAT, *NEXT), "ab"))

    def test_helpers_that_begin_with_the_same_words_disturb_nothing(self) -> None:
        self.accept(CHAT[:2], "ba")
        self.assertIsNone(self.accept(TITLE, ""))
        self.assertIsNone(self.accept(TITLE, "xy"))
        self.assertEqual("ba", self.found(CHAT, "ab"))
        self.restart()
        self.accept(TITLE, "")
        self.assertEqual("ba", self.found(CHAT, "ab"))

    def test_agents_that_begin_alike_keep_their_own_orders(self) -> None:
        ways = {tools: (*CHAT[:2], assistant(tools), user("go")) for tools in ("bac", "cab", "ca", "bd")}
        for tools, messages in ways.items():
            self.accept(messages, tools)
        for tools, messages in ways.items():
            self.assertEqual(tools, self.found((*messages, *NEXT), "".join(sorted(tools))))
        self.restart()
        # Without their words, agents with the same set of tools are one; the newest order counts.
        for tools in ("cab", "ca", "bd"):
            self.assertEqual(tools, self.found((*ways[tools], *NEXT), "".join(sorted(tools))))

    def test_clearing_the_store_clears_this_too(self) -> None:
        self.accept(CHAT, "ba")
        self.store.flush()
        reasoning = ReasoningStore(self.path)
        self.addCleanup(reasoning.close)
        reasoning.clear()
        self.assertEqual([], self.rows())


class TestForgetting(ChatStoreTestCase):
    def fill(self, count: int) -> None:
        for number in range(count):
            self.accept(CHAT, "ba", chat=b"%d" % number)
            self.now += 1

    def test_rows_that_are_too_old_or_too_many_go(self) -> None:
        self.store = self.store_on(self.database, max_rows=10, max_age_seconds=DAY)
        self.fill(15)
        self.store.flush()
        self.assertEqual(5, self.store.prune())
        self.now += DAY - 5
        self.assertEqual(5, self.store.prune())
        self.assertEqual(5, len(self.rows()))

    def test_pruning_happens_by_itself_and_not_on_an_answering_thread(self) -> None:
        self.store = self.store_on(self.database, max_rows=5)
        writes = ChatStore.kind.writes_between_prunings
        self.assert_prunes_on_another_thread(self.store, lambda: self.fill(writes))

    def test_memory_is_bounded_by_messages_tools_and_branches(self) -> None:
        self.enterContext(mock.patch.object(conversation_store, "_MESSAGES_IN_MEMORY", 80))
        self.fill(100)
        self.assertEqual(10, len(self.store._chats))
        for number in range(100):
            self.accept((*CHAT[:2], assistant(str(number)), user("go")), "ba", chat=b"one")
        self.assertEqual(conversation_store._BRANCHES_PER_CHAT, len(self.store._chats[b"one"]))
        outlines = [branch.last for branches in self.store._chats.values() for branch in branches if branch.last]
        self.assertEqual(sum(1 + len(each.messages) + len(each.tools) for each in outlines), self.store._size)

    def test_what_memory_forgot_is_still_on_disk(self) -> None:
        self.enterContext(mock.patch.object(conversation_store, "_MESSAGES_IN_MEMORY", 10))
        self.fill(20)
        self.store.flush()
        self.assertEqual("ba", self.found(CHAT, "ab", chat=b"0"))


class TestFaults(ChatStoreTestCase):
    def test_a_file_that_is_closed_or_locked_hurts_nobody(self) -> None:
        locker = self.lock()
        with self.assertNoLogs("deepseek_cursor_proxy", logging.WARNING):
            self.accept(CHAT, "ba")
            self.accept((*CHAT, *NEXT), "ba")
        self.assertEqual("ba", self.found(CHAT, "ab"))
        locker.execute("ROLLBACK")
        self.database.reopen()
        # What could not be written is written when the file can be used again.
        self.assertEqual(['["b", "a"]'], self.rows())
        self.store.close()
        self.database.close()
        self.accept(CHAT, "bac", chat=b"another")
        self.assertIsNone(self.found(CHAT, "ab", chat=b"a third"))

    def test_a_damaged_row_is_as_good_as_none(self) -> None:
        self.accept(CHAT, "ba")
        self.store.flush()
        self.execute("UPDATE tool_orders SET names = 'no JSON'")
        self.restart()
        with self.assertLogs(conversation_store.__name__, logging.WARNING):
            self.assertIsNone(self.found(CHAT, "ab"))

    def test_many_threads_share_it(self) -> None:
        def work(number: int) -> None:
            mine = (*CHAT[:2], assistant(f"agent {number}"), user("go"))
            for length in range(20):
                self.accept((*mine, *NEXT * length), "ba")

        run_at_once(work, range(8))
        self.assertEqual(['["b", "a"]'], self.rows())
        self.assertIsInstance(self.store._chats[b"chat"][0].last, RequestOutline)
