import json
import unittest
from collections.abc import Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import ChatRequest, Delta, Message, Reply, ServerDelta, ServerPiece, pack_items
from deepseek_cursor_proxy.errors import TooLarge
from deepseek_cursor_proxy.reasoning import server_turns
from deepseek_cursor_proxy.reasoning.identity import History
from deepseek_cursor_proxy.reasoning.restore import PreparedRequest, TurnCounts
from tests.support.histories import new_chat

CALLER = b"caller"
SEARCH = {
    "id": "ws_1", "type": "web_search_call", "status": "completed",
    "action": {"type": "search", "query": "rain", "sources": ["https://a.example"]},
}  # fmt: skip
PAGE = {
    "id": "ws_2", "type": "web_search_call", "status": "completed",
    "action": {"type": "open_page", "url": "https://a.example"},
}  # fmt: skip
WHERE, THERE, SO = ({"type": "thinking", "length": length} for length in (6, 7, 3))
TEXT = {"type": "text", "length": 5}


def answer(*pieces: str | dict[str, Any]) -> Message:
    reply = Reply()
    for key, piece in enumerate(pieces):
        if isinstance(piece, dict):
            reply.add(Delta(server=ServerDelta((ServerPiece(key, piece),))))
        else:
            reply.add(Delta(text=piece) if piece.isupper() else Delta(reasoning=piece))
    return reply.message()


def record_keys(turn: Message) -> tuple[bytes, ...]:
    """The keys of an answer to another question than that of the tests."""
    return server_turns.record_keys(CALLER, turn, History(CALLER, [Message("user", "Else?")]).answer_keys(turn))


ANSWER = answer("Where?", SEARCH, "There? ", PAGE, "So.", "RAIN!")


def without(item: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def sent(*items: dict[str, Any], reasoning: str | None = ANSWER.reasoning, content: str = "RAIN!") -> Message:
    return Message("assistant", content, reasoning, server_items=pack_items("responses", items))


class TestComplete(unittest.TestCase):
    def complete(self, message: Message, *stored: Message) -> list[dict[str, Any]]:
        """The items of a message after one lookup; the stored answers are in the order they came."""
        texts: dict[bytes, list[str]] = {}
        for each in stored:
            for key in record_keys(each)[1:]:
                texts.setdefault(key, []).append(each.server_items or "")
        request = ChatRequest("m", "m", (Message("user", "Rain?"), message))
        prepared = PreparedRequest(request, History(CALLER, request.messages), ())
        found = server_turns.complete(prepared, CALLER, lambda keys: {key: texts[key] for key in keys if key in texts})
        return self.items(found.request.messages[-1])

    def test_in_memory_the_items_and_details_of_one_caller_are_no_others(self) -> None:
        request = ChatRequest("m", "m", (Message("user", "Rain?"), sent(WHERE, without(SEARCH, "action"))))
        prepared, memory = PreparedRequest(request, History(CALLER, request.messages), ()), new_chat()
        for add in (server_turns.complete, server_turns.add_details):
            whole = pack_items("responses", [WHERE, SEARCH]) if add is server_turns.complete else "[1]"
            add(prepared, CALLER, lambda keys, whole=whole: {key: [whole] for key in keys}, memory)
            self.assertEqual(request, add(prepared, b"other", lambda _: {}, memory).request)

    def test_what_the_store_adds_counts_for_the_size(self) -> None:
        """A client could name one long answer many times."""
        long = {server_turns.complete: pack_items("responses", [WHERE, SEARCH]), server_turns.add_details: "[1]"}
        request = ChatRequest("m", "m", (Message("user", "Rain?"), sent(WHERE, without(SEARCH, "action"))))
        for add, text in long.items():
            prepared = PreparedRequest(request, History(CALLER, request.messages), (), size=0)
            prepared = add(prepared, CALLER, lambda keys, text=text: {key: [text] for key in keys})
            with self.assertRaises(TooLarge):
                prepared.check_size(len(text) - 1)

    def items(self, message: Message) -> list[dict[str, Any]]:
        (items,) = json.loads(message.server_items or "{}").values()
        return list(items)

    def check_original(self, *items: dict[str, Any], **fields: Any) -> None:
        self.assertEqual([WHERE, SEARCH, THERE, PAGE, SO, TEXT], self.complete(sent(*items, **fields), ANSWER))

    def test_a_turn_that_is_whole_stays_as_it_is(self) -> None:
        self.check_original(WHERE, SEARCH, THERE, PAGE, SO, TEXT)

    def test_reasoning_that_the_client_dropped_gets_its_places(self) -> None:
        self.check_original(SEARCH, PAGE, TEXT)

    def test_ids_and_fields_that_the_client_dropped_come_back(self) -> None:
        action = without(SEARCH["action"], "sources")
        bare = {**without(SEARCH, "id"), "action": action}
        self.check_original(bare, without(PAGE, "id", "status", "action"), TEXT)
        self.check_original({**bare, "id": None, "status": "searching"}, PAGE, TEXT)

    def test_fields_that_only_the_client_got_are_no_contradiction(self) -> None:
        bare = {"type": "web_search_call", "id": "ws_1"}
        for stored in (bare, {**bare, "action": {"type": "search", "queries": ["rain"]}}):
            echo = {**bare, "status": "completed", "action": {"type": "search", "query": "rain", "queries": ["rain"]}}
            echo = echo if "action" in stored else {**echo, "action": {"type": "search", "query": ""}}
            self.assertEqual([WHERE, stored], self.complete(sent(echo, reasoning="Where?"), answer("Where?", stored)))

    def test_without_reasoning_the_text_finds_the_turn(self) -> None:
        self.check_original(without(SEARCH, "id"), PAGE, TEXT, reasoning=None)
        self.check_original(without(SEARCH, "id"), PAGE, TEXT, reasoning=" ", content="RAIN!\n")

    def test_an_item_that_contradicts_the_stored_one_stays(self) -> None:
        for other in ({**SEARCH, "id": "ws_9"}, {**SEARCH, "action": {"query": "sun"}}, {**SEARCH, "more": 1}):
            for items in ([other, PAGE, TEXT], [SEARCH, TEXT], [SEARCH, PAGE, other]):
                self.assertEqual(items, self.complete(sent(*items), ANSWER), items)

    def test_other_words_find_nothing(self) -> None:
        items: Sequence[dict[str, Any]] = [SEARCH, PAGE, TEXT]
        self.assertEqual(items, self.complete(sent(*items, reasoning="Else."), ANSWER))
        self.assertEqual(items, self.complete(sent(*items, reasoning=None, content=""), ANSWER))

    def test_the_exact_turn_wins_over_one_with_the_same_words(self) -> None:
        question = Message("user", "Rain?")
        turns = [answer("Where?", {**SEARCH, "id": f"ws_{number}"}, "RAIN!") for number in range(3)]
        texts: dict[bytes, list[str]] = {}
        history = [question]
        for turn in turns:
            for key in server_turns.record_keys(CALLER, turn, History(CALLER, history).answer_keys(turn)):
                texts.setdefault(key, []).append(turn.server_items or "")
            history += [sent(without(SEARCH, "id"), TEXT, reasoning="Where?"), question]
        request = ChatRequest("m", "m", tuple(history))
        prepared = PreparedRequest(request, History(CALLER, history), ())
        found = server_turns.complete(prepared, CALLER, lambda keys: {key: texts[key] for key in keys if key in texts})
        ids = [self.items(message)[1]["id"] for message in found.request.messages if message.role == "assistant"]
        self.assertEqual(["ws_0", "ws_1", "ws_2"], ids)
        # As a transcript it is another history.
        changed = prepared._replace(counts=TurnCounts(recovered=1))
        found = server_turns.complete(changed, CALLER, lambda keys: {key: texts[key] for key in keys if key in texts})
        ids = [self.items(message)[1]["id"] for message in found.request.messages if message.role == "assistant"]
        self.assertEqual(["ws_0"] * 3, ids)

    def test_of_two_equal_turns_the_ids_decide_and_else_the_older_is_sent(self) -> None:
        later = answer("Where?", {**SEARCH, "id": "ws_8"}, "RAIN!")
        earlier = answer("Where?", SEARCH, "RAIN!")
        for item, id in ((without(SEARCH, "id"), "ws_1"), ({**SEARCH, "id": "ws_8"}, "ws_8")):
            found = self.complete(sent(item, reasoning="Where?"), earlier, later)
            self.assertEqual(id, found[1]["id"])
