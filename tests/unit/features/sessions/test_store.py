import random
import sqlite3
import unittest
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.conversation import Message, ToolCall
from deepseek_cursor_proxy.features.sessions import export
from deepseek_cursor_proxy.features.sessions.store import SessionStore
from deepseek_cursor_proxy.features.sessions.trajectory import (
    Node,
    RecordedTurn,
    SessionOptions,
    TurnOfSession,
    UnnamedSession,
    new_session,
)
from deepseek_cursor_proxy.storage.database import Reopener
from deepseek_cursor_proxy.storage.faults import Unusable
from tests.support.polling import wait_until
from tests.support.traced_memory import traced_memory
from tests.support.width import width

ME, OTHER = b"me", b"other"


def user(text: str) -> Message:
    return Message("user", text)


def answer(text: str, reasoning: str | None = None, *calls: ToolCall) -> Message:
    return Message("assistant", text, reasoning, calls)


def turn(*messages: Message, tools: tuple[dict[str, Any], ...] = (), **details: Any) -> RecordedTurn:
    *history, last = messages
    return RecordedTurn(tuple(history), tools, last, {"n": len(messages)}, **details)


class StoreTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        place = TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = Path(place.name) / "sessions.sqlite3"
        self.store = self.open()

    def open(self, **limits: int) -> SessionStore:
        store = SessionStore(self.path, clock=lambda: self.now)
        vars(store).update(limits)
        self.addCleanup(store.close)
        return store

    def create(self, caller: bytes = ME, **options: Any) -> str:
        return self.store.insert(caller, new_session(SessionOptions(**options), "deepseek-v4-pro", self.now)).uuid

    def record(self, session: str | UnnamedSession, *turns: RecordedTurn, caller: bytes = ME) -> None:
        self.store.record([TurnOfSession(caller, session, each) for each in turns])

    def nodes(self, session: str) -> list[Node]:
        return list(self.store.nodes(session))


class TestSessions(StoreTestCase):
    def test_a_session_is_there_for_its_caller_alone(self) -> None:
        session = self.create(name="Try 1 / ✓", tags=("a", "b"))
        found = self.store.get(ME, session)
        assert found is not None
        self.assertEqual(("Try 1 / ✓", ("a", "b")), (found.options.name, found.options.tags))
        self.assertEqual((None, found), (self.store.get(OTHER, session), self.store.get(None, session)))
        self.assertEqual([], self.store.list(OTHER))
        self.assertFalse(self.store.delete(OTHER, session))
        self.record(session, turn(user("a"), answer("b")), caller=OTHER)
        self.assertEqual([], self.nodes(session))
        self.assertEqual(1, len(self.store.list(ME)))

    def test_a_parser_that_was_asked_for_by_name_is_known_after_a_restart(self) -> None:
        sessions = [self.create(reads_written_calls=is_named) for is_named in (True, False)]
        found = [self.open().get(ME, session) for session in sessions]
        options = [each.options for each in found if each is not None]
        self.assertEqual([True, False], [each.reads_written_calls for each in options])

    def test_a_session_counts_its_requests_tokens_and_money(self) -> None:
        session = self.create()
        self.record(session, turn(user("a"), answer("b"), tokens=10, cost=0.5, model="m"))
        self.record(session, turn(user("c"), answer("d"), tokens=5, cost=None, model="m"))
        found = self.store.get(ME, session)
        assert found is not None
        self.assertEqual((2, 2, 15, 0.5, "m"), (found.requests, found.nodes, found.tokens, found.cost, found.model))

    def test_a_deleted_session_leaves_no_byte_in_the_file(self) -> None:
        secret = "".join(random.Random(1).choices("abcdefghijklmnop", k=400))
        session, kept = self.create(), self.create()
        self.record(session, turn(user("a"), answer("b", secret)))
        self.record(kept, turn(user("a"), answer("c")))
        packed = self._rows("SELECT body FROM messages")
        self.assertTrue(self.store.delete(ME, session))
        self.assertFalse(self.store.delete(ME, session))
        left = self._rows("SELECT body FROM messages")
        gone = [body for body in packed if body not in left]
        self.assertEqual(1, len(gone))
        data = b"".join(each.read_bytes() for each in self.path.parent.iterdir())
        self.assertNotIn(gone[0], data)
        self.assertEqual(1, len(self.nodes(kept)))
        left = [self._rows(f"SELECT count(*) FROM {table}")[0] for table in ("sessions", "messages", "links", "nodes")]
        self.assertEqual([1, 3, 2, 1], left)

    def _rows(self, statement: str) -> list[bytes]:
        with self.store.database.reader() as connection:
            return [row[0] for row in connection.execute(statement)]

    def test_an_unknown_session_is_not_waited_for_while_another_process_writes(self) -> None:
        session = self.create()
        with closing(sqlite3.connect(self.path)) as other, mock.patch.object(Reopener, "wake"):
            other.execute("BEGIN IMMEDIATE")
            self.assertFalse(self.store.delete(ME, "none"))
            self.assertFalse(self.store.delete(OTHER, session))
            self.assertRaises(Unusable, self.store.delete, ME, session)

    def test_old_surplus_and_expired_sessions_are_pruned(self) -> None:
        for limits, ages, options, kept in (
            ({"max_age_seconds": 100}, (200, 50), {}, 1), ({"max_sessions": 2}, (3, 2, 1), {}, 2),
            ({}, (10,), {"ttl_seconds": 5}, 0), ({"max_bytes": 0}, (1,), {}, 0),
        ):  # fmt: skip
            with self.subTest(**limits):
                self.store.close()
                self.path.unlink()
                self.store = self.open(**limits)
                for age in ages:
                    self.now = 1000.0 - age
                    self.record(self.create(**options), turn(user(f"{age}"), answer("b")))
                self.now = 1000.0
                self.store.prune()
                self.assertEqual(kept, self.store.count())

    def test_each_chat_has_one_session_when_all_are_recorded(self) -> None:
        chat = [user("q"), answer("a"), user("r"), answer("b")]
        unnamed = UnnamedSession(b"chat", "Try", "m")
        self.record(unnamed, turn(*chat[:2]), turn(*chat))
        self.record(unnamed, turn(*chat, user("s"), answer("c")))
        self.record(unnamed, turn(*chat[:2]), caller=OTHER)
        self.record(UnnamedSession(b"other", "Try", "m"), turn(*chat[:2]))
        found = [self.nodes(session.uuid) for session in self.store.list(ME)]
        self.assertEqual([[2], [6]], sorted([len(node.messages) for node in nodes] for nodes in found))
        self.assertEqual((2, 1), (len(self.store.list(ME)), len(self.store.list(OTHER))))


class TestNodes(StoreTestCase):
    def test_a_chat_that_only_grows_is_one_node_with_the_reasoning_of_every_turn(self) -> None:
        session = self.create()
        call = ToolCall("call_1", "read", '{"path": "a"}')
        prompt, result = Message("system", "Be brief."), Message("tool", "text", tool_call_id="call_1")
        first = answer("", "I read.", call)
        self.record(session, turn(prompt, user("q"), first))
        stripped = first._replace(reasoning=None)
        self.record(session, turn(prompt, user("q"), stripped, result, answer("Done.", "It is a.")))
        (node,) = self.nodes(session)
        self.assertEqual(["system", "user", "assistant", "tool", "assistant"], [each["role"] for each in node.messages])
        self.assertEqual(["I read.", "It is a."], [node.messages[at]["reasoning_content"] for at in (2, 4)])
        self.assertEqual({2, 4}, set(node.own))
        self.assertEqual(5, node.info["n"])

    def test_an_answer_that_was_a_message_before_is_the_models_own_with_its_reasoning(self) -> None:
        """The chat began elsewhere; then its first question was asked again, here, and answered alike."""
        session = self.create()
        self.record(session, turn(user("q"), answer("a"), user("r"), answer("b")))
        self.record(session, turn(user("q"), answer("a", "Because.")))
        node = next(node for node in self.nodes(session) if len(node.messages) == 4)
        self.assertEqual(("Because.", {1, 3}), (node.messages[1]["reasoning_content"], set(node.own)))

    def test_a_node_has_the_times_of_all_its_turns(self) -> None:
        session = self.create()
        for number in (1, 2):
            messages = [user("q"), answer("a"), user("r"), answer("b")][: 2 * number]
            self.record(session, turn(*messages)._replace(info={"started": number, "finished": number + 0.5}))
        (node,) = self.nodes(session)
        self.assertEqual((1, 2.5), (node.info["started"], node.info["finished"]))

    def test_a_changed_prompt_and_changed_tools_continue_the_node(self) -> None:
        session = self.create()
        tools = ({"type": "function", "function": {"name": "read"}},)
        self.record(session, turn(Message("system", "Monday."), user("q"), answer("a")))
        later = turn(Message("system", "Tuesday."), user("q"), answer("a"), user("r"), answer("b"), tools=tools)
        self.record(session, later)
        (node,) = self.nodes(session)
        self.assertEqual(("Tuesday.", tools), (node.messages[0]["content"], node.tools))
        again = later._replace(messages=(*later.messages, later.answer, user("s")), answer=answer("c"), tools=())
        self.record(session, again)
        (node,) = self.nodes(session)
        self.assertEqual(("Tuesday.", ()), (node.messages[0]["content"], node.tools))

    def test_a_message_of_the_history_is_not_the_models_unless_it_wrote_it_here(self) -> None:
        session = self.create()
        self.record(session, turn(user("q"), answer("from elsewhere", "theirs"), user("r"), answer("b")))
        (node,) = self.nodes(session)
        self.assertEqual({3}, set(node.own))
        self.assertEqual("theirs", node.messages[1]["reasoning_content"])

    def test_every_step_is_a_node_when_the_tree_is_tracked(self) -> None:
        session = self.create(track_tree=True)
        chat = [user("q"), answer("a"), user("r"), answer("b")]
        self.record(session, turn(*chat[:2]))
        self.record(session, turn(*chat))
        first, second = self.nodes(session)
        self.assertEqual((2, 4, first.id), (len(first.messages), len(second.messages), second.parent))

    def test_two_processes_record_into_one_session(self) -> None:
        session, other = self.create(), self.open()
        begin = [user("q"), answer("a")]
        self.record(session, turn(*begin))
        other.record([TurnOfSession(ME, session, turn(*begin, user("r"), answer("b")))])
        self.record(session, turn(*begin, user("s"), answer("c")))
        first, second = self.nodes(session)
        self.assertEqual(
            [["q", "a", "r", "b"], ["q", "a", "s", "c"]], [[m["content"] for m in n.messages] for n in (first, second)]
        )
        self.assertEqual(first.id, second.parent)

    def test_a_turn_with_a_bug_costs_itself_alone(self) -> None:
        session, begin = self.create(), [user("q"), answer("a")]
        bug, later = turn(user("q"), None), turn(*begin, user("r"), answer("b"))  # type: ignore[arg-type]
        self.record(session, turn(*begin))
        with self.assertLogs("deepseek_cursor_proxy.features.sessions", "WARNING") as logged:
            self.record(session, later, bug)
            wait_until(lambda: [len(node.messages) for node in self.nodes(session)] == [4])
            self.record(session, bug, turn(*later.messages, later.answer, user("s"), answer("c")))
            wait_until(lambda: [len(node.messages) for node in self.nodes(session)] == [6])
        self.assertEqual(1, len(logged.output))

    def test_a_filler_is_no_reasoning(self) -> None:
        session = self.create()
        self.record(session, turn(user("q"), answer("a", " ")))
        self.assertNotIn("reasoning_content", self.nodes(session)[0].messages[1])

    def test_log_probabilities_are_kept_with_their_answer(self) -> None:
        session = self.create()
        logprobs = [[{"token": "a", "logprob": -0.1, "bytes": [97]}]]
        self.record(session, turn(user("q"), answer("a"), logprobs=logprobs))
        self.assertEqual({1: logprobs}, self.nodes(session)[0].logprobs)

    def test_an_export_takes_no_more_memory_for_more_nodes(self) -> None:
        def peak(count: int) -> int:
            session = self.create()
            self.record(session, *[turn(user(f"q{number} " + "x" * 1000), answer("a")) for number in range(count)])
            with traced_memory() as memory:
                lines = export.lines(self.store.nodes(session), "openai", export.Filter())
                self.assertEqual(count, sum(1 for _ in lines))
                return memory.peak()

        self.assertLess(peak(600), 1.5 * peak(150))

    def test_generated_chats_with_branches_have_the_nodes_of_the_reference(self) -> None:
        for seed in range(width(60, 1000)):
            with self.subTest(seed=seed):
                self._compare(random.Random(seed))

    def _compare(self, rng: random.Random) -> None:
        session, reference = self.create(), _Reference()
        chats: list[list[Message]] = [[]]
        waiting: list[RecordedTurn] = []
        for _ in range(rng.randint(1, 12)):
            begin = rng.choice(chats)
            cut = rng.choice([len(begin), len(begin), rng.randrange(len(begin) + 1)])
            # A history ends with a question: an answer at the cut is asked again.
            history = begin[: cut - 1 if cut and begin[cut - 1].role == "user" else cut]
            history = [*history, user(f"q{rng.randrange(3)}")]
            last = answer(f"a{rng.randrange(3)}", rng.choice((None, "", " ", "thought")))
            waiting.append(turn(*history, last))
            if rng.random() < 0.5:
                self.record(session, *waiting)
                waiting.clear()
            reference.record(history, last)
            chats.append([*history, last])
        if waiting:
            self.record(session, *waiting)
        found = self.nodes(session)
        ids = {node.id: at for at, node in enumerate(found)}
        self.assertEqual(
            reference.nodes(),
            [(None if n.parent is None else ids[n.parent], [m["content"] for m in n.messages]) for n in found],
        )


class _Reference:
    """The rules for nodes, without a store: chains of texts."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int | None, list[str]]] = []
        # The node that each beginning of a chat was added for.
        self._added_for: dict[tuple[str, ...], int] = {}

    def nodes(self) -> list[tuple[int | None, list[str]]]:
        return self._nodes

    def record(self, history: list[Message], last: Message) -> None:
        texts = [str(each.content) for each in (*history, last)]
        before = [at for at, (_, chain) in enumerate(self._nodes) if chain == texts[: len(chain)] and chain != texts]
        same = [at for at, (_, chain) in enumerate(self._nodes) if chain == texts]
        if same:
            node = same[0]
        elif before:
            node = max(before, key=lambda at: len(self._nodes[at][1]))
            self._nodes[node] = (self._nodes[node][0], texts)
        else:
            known = [end for end in range(1, len(texts)) if tuple(texts[:end]) in self._added_for]
            parent = self._added_for[tuple(texts[: known[-1]])] if known else None
            node = len(self._nodes)
            self._nodes.append((parent, texts))
        for end in range(1, len(texts) + 1):
            self._added_for.setdefault(tuple(texts[:end]), node)
