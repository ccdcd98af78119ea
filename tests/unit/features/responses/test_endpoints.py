import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta
from deepseek_cursor_proxy.features.responses import endpoints as responses
from tests.support.bad_requests import assert_named
from tests.support.generated_answers import FUNCTION, MARK, writer
from tests.support.responses_client import events

ITEMS = [{"id": f"msg_{number}", "type": "message"} for number in range(45)]


class TestCompleteItems(unittest.TestCase):
    def test_every_stored_input_item_gets_a_type_an_id_and_a_status(self) -> None:
        kinds = "function_call function_call_output custom_tool_call custom_tool_call_output"
        given: list[dict[str, Any]] = [
            {"role": "user", "content": "q"},
            {"type": "reasoning"},
            *({"type": kind, "call_id": "a"} for kind in kinds.split()),
            {"type": "message", "role": "assistant", "content": "x", "id": "mine", "status": "incomplete"},
        ]
        found = responses.complete_items(given, MARK, 3)
        prefixes = ["msg", "rs", "fc", "fco", "ctc", "ctco"]
        expected = [f"{prefix}_{MARK}_i{number}" for number, prefix in enumerate(prefixes, 3)]
        self.assertEqual([*expected, "mine"], [item["id"] for item in found])
        self.assertEqual([*["completed"] * 6, "incomplete"], [item["status"] for item in found])
        self.assertEqual([{"type": "input_text", "text": "q"}], found[0]["content"])
        self.assertEqual([{"type": "output_text", "text": "x", "annotations": []}], found[-1]["content"])
        self.assertEqual([], found[1]["summary"])

    def test_stored_items_of_unknown_kinds_stay_unchanged(self) -> None:
        for item in ({"type": "mcp_call", "server_label": "m"}, {"type": "", "x": 1}):
            self.assertEqual([{**item, "id": f"msg_{MARK}_i0"}], responses.complete_items([item], MARK))


class TestPages(unittest.TestCase):
    def all_pages(self, items: list[dict[str, str]], query: str) -> list[Any]:
        data: list[Any] = []
        after, has_more = "", True
        while has_more and len(data) <= len(items):
            page = responses.page(items, query + after)
            data += page["data"]
            after, has_more = f"&after={page['last_id']}", page["has_more"]
        return data

    def test_a_page_has_twenty_items_the_latest_first(self) -> None:
        found = responses.page(ITEMS, "")
        self.assertEqual((ITEMS[:24:-1], True), (found["data"], found["has_more"]))
        self.assertEqual(("list", "msg_44", "msg_25"), (found["object"], found["first_id"], found["last_id"]))

    def test_all_pages_together_are_the_list_of_items(self) -> None:
        for order, expected in (("asc", ITEMS), ("desc", ITEMS[::-1])):
            for limit in (1, 7, 44, 45, 46, 100):
                self.assertEqual(expected, self.all_pages(ITEMS, f"order={order}&limit={limit}"))

    def test_pages_come_to_an_end_with_an_item_that_was_sent_twice(self) -> None:
        items = [{"type": "message", "id": id, "content": id} for id in "abcbd"]
        for order, expected in (("asc", "abd"), ("desc", "dba")):
            data = self.all_pages(items, f"order={order}&limit=1")
            self.assertEqual(expected, "".join(item["id"] for item in data))

    def test_the_page_after_the_last_item_is_empty(self) -> None:
        found = responses.page(ITEMS, "after=msg_0")
        self.assertEqual(
            ([], None, None, False), tuple(found[name] for name in ("data", "first_id", "last_id", "has_more"))
        )
        self.assertEqual([], responses.page([], "")["data"])

    def test_a_bad_page_parameter_is_a_400_that_names_it(self) -> None:
        limits = [f"limit={each}" for each in ("0", "101", "-1", "x", "1e1", "%D9%A3")]
        rows = (("limit", *limits), ("order", "order=up"), ("after", "after=nobody"))
        assert_named(self, lambda query: responses.page(ITEMS, query), "", *rows)


class TestReplay(unittest.TestCase):
    def test_starting_after_is_read_from_the_query(self) -> None:
        for query, expected in (
            ("", None), ("stream=false&starting_after=7", None), ("starting_after=7", None), ("stream=true", -1),
            ("stream=true&starting_after=-1", -1), ("stream=true&starting_after=0", 0),
            ("starting_after=12&stream=true", 12),
        ):  # fmt: skip
            self.assertEqual(expected, responses.starting_after(query), query)

    def test_a_starting_after_that_is_no_number_is_refused(self) -> None:
        queries = [f"stream=true&starting_after={given}" for given in ("x", "-2", "1.5", "9" * 16, "%D9%A3")]
        assert_named(self, responses.starting_after, "", ("starting_after", *queries))

    def test_a_replay_may_begin_after_any_event(self) -> None:
        """Also where the text of an event looks like one."""
        writing = writer()
        text = 'event: x\ndata: {"type":"response.x","sequence_number":99}\n\n'
        batch = [Delta(reasoning=text), Delta(text=text), Delta(calls=(CallPiece(0, "a", FUNCTION, text),))]
        data = writing.begin() + writing.write(batch) + writing.end()
        whole = events(data)
        for number in range(-1, len(whole) + 2):
            self.assertEqual(whole[number + 1 :], events(responses.events_after(data, number)))
