"""Pages of stored items, and replays of stored events."""

import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols.responses import stored
from tests.support.generated_answers import FUNCTION, MARK, writer
from tests.support.responses_client import events

ITEMS = [{"id": f"msg_{number}", "type": "message"} for number in range(45)]


class TestCompleteItems(unittest.TestCase):
    def test_every_stored_input_item_gets_a_type_an_id_and_a_status(self) -> None:
        given: list[dict[str, Any]] = [
            {"role": "user", "content": "q"},
            {"type": "reasoning"},
            {"type": "function_call", "call_id": "a"},
            {"type": "function_call_output", "call_id": "a"},
            {"type": "custom_tool_call", "call_id": "b"},
            {"type": "custom_tool_call_output", "call_id": "b"},
            {"type": "message", "role": "assistant", "content": "x", "id": "mine", "status": "incomplete"},
        ]
        found = stored.complete_items(given, MARK, 3)
        prefixes = ["msg", "rs", "fc", "fco", "ctc", "ctco"]
        expected = [f"{prefix}_{MARK}_i{number}" for number, prefix in enumerate(prefixes, 3)]
        self.assertEqual([*expected, "mine"], [item["id"] for item in found])
        self.assertEqual([*["completed"] * 6, "incomplete"], [item["status"] for item in found])
        self.assertEqual([{"type": "input_text", "text": "q"}], found[0]["content"])
        self.assertEqual([{"type": "output_text", "text": "x", "annotations": []}], found[-1]["content"])
        self.assertEqual([], found[1]["summary"])

    def test_stored_items_of_unknown_kinds_stay_unchanged(self) -> None:
        [found] = stored.complete_items([{"type": "web_search_call", "action": {}}], MARK)
        self.assertEqual({"type": "web_search_call", "action": {}, "id": f"msg_{MARK}_i0"}, found)
        [found] = stored.complete_items([{"type": "", "x": 1}], MARK)
        self.assertEqual({"type": "", "x": 1, "id": f"msg_{MARK}_i0"}, found)


class TestPages(unittest.TestCase):
    def test_a_page_has_twenty_items_the_latest_first(self) -> None:
        found = stored.page(ITEMS, "")
        self.assertEqual((ITEMS[:24:-1], True), (found["data"], found["has_more"]))
        self.assertEqual(("list", "msg_44", "msg_25"), (found["object"], found["first_id"], found["last_id"]))

    def test_all_pages_together_are_the_list_of_items(self) -> None:
        for order, expected in (("asc", ITEMS), ("desc", ITEMS[::-1])):
            for limit in (1, 7, 44, 45, 46, 100):
                data: list[Any] = []
                after, has_more = "", True
                while has_more:
                    page = stored.page(ITEMS, f"order={order}&limit={limit}{after}")
                    data += page["data"]
                    after, has_more = f"&after={page['last_id']}", page["has_more"]
                self.assertEqual(expected, data)

    def test_pages_contain_every_item_even_with_equal_ids(self) -> None:
        ids = ["a", "b", "a", "a_2", "a", "b"]
        items = [{"type": "message", "id": id, "content": str(position)} for position, id in enumerate(ids)]
        for order in ("asc", "desc"):
            data: list[Any] = []
            after, has_more = "", True
            while has_more and len(data) < 10:
                page = stored.page(items, f"order={order}&limit=1{after}")
                data += page["data"]
                after, has_more = f"&after={page['last_id']}", page["has_more"]
            self.assertEqual([*"012345"], sorted(item["content"] for item in data))
            self.assertEqual({"a", "b", "a_3", "a_2", "a_4", "b_2"}, {item["id"] for item in data})

    def test_the_page_after_the_last_item_is_empty(self) -> None:
        found = stored.page(ITEMS, "after=msg_0")
        self.assertEqual(
            ([], None, None, False), tuple(found[name] for name in ("data", "first_id", "last_id", "has_more"))
        )
        self.assertEqual([], stored.page([], "")["data"])

    def test_a_bad_page_parameter_is_a_400_that_names_it(self) -> None:
        for query, param in (
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=-1", "limit"),
            ("limit=x", "limit"),
            ("limit=1e1", "limit"),
            ("limit=%D9%A3", "limit"),
            ("order=up", "order"),
            ("after=nobody", "after"),
        ):
            with self.subTest(query), self.assertRaises(BadRequest) as caught:
                stored.page(ITEMS, query)
            self.assertEqual(param, caught.exception.param)


class TestReplay(unittest.TestCase):
    def test_starting_after_is_read_from_the_query(self) -> None:
        for query, expected in (
            ("", None),
            ("stream=false&starting_after=7", None),
            ("starting_after=7", None),
            ("stream=true", -1),
            ("stream=true&starting_after=-1", -1),
            ("stream=true&starting_after=0", 0),
            ("starting_after=12&stream=true", 12),
        ):
            self.assertEqual(expected, stored.starting_after(query), query)

    def test_a_starting_after_that_is_no_number_is_refused(self) -> None:
        for given in ("x", "-2", "1.5", "9" * 16, "%D9%A3"):
            with self.subTest(given), self.assertRaises(BadRequest) as caught:
                stored.starting_after(f"stream=true&starting_after={given}")
            self.assertEqual("starting_after", caught.exception.param)

    def test_a_replay_may_begin_after_any_event(self) -> None:
        """Also where the text of an event looks like one."""
        writing = writer()
        text = 'event: x\ndata: {"type":"response.x","sequence_number":99}\n\n'
        batch = [Delta(reasoning=text), Delta(text=text), Delta(calls=(CallPiece(0, "a", FUNCTION, text),))]
        data = writing.begin() + writing.write(batch) + writing.end()
        whole = events(data)
        for number in range(-1, len(whole) + 2):
            self.assertEqual(whole[number + 1 :], events(stored.events_after(data, number)))
