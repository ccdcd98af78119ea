import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Message, ToolCall, unpack_items
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.features.encryption import Opener, Sealer
from deepseek_cursor_proxy.features.responses import fields
from deepseek_cursor_proxy.protocols import input_items
from deepseek_cursor_proxy.protocols.tools import ToolNames
from tests.support.bad_requests import assert_named
from tests.support.histories import assistant, new_chat, result, system, user
from tests.support.responses_client import HOSTED


def answer(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content, **fields}


def question(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def reasoning(text: str | None = None, **fields: Any) -> dict[str, Any]:
    content = None if text is None else [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, **fields}


def call(call_id: str, arguments: Any = "{}") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": "Read", "arguments": arguments}


def output(call_id: str, value: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def messages(*items: Any) -> list[Message]:
    return list(input_items.read(list(items), tools=ToolNames(known={"Read"})).messages)


class TestTurns(unittest.TestCase):
    def test_text_parts_stay_a_list_in_user_items_only(self) -> None:
        parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
        apart = ({"type": "text", "text": "a"}, {"type": "text", "text": "b"})
        for role, expected in (("user", apart), ("developer", "a\nb"), ("system", "a\nb")):
            [message] = input_items.read([{"type": "message", "role": role, "content": parts}]).messages
            self.assertEqual(expected, message.content)
        [message] = input_items.read([{"role": "user", "content": parts[:1]}]).messages
        self.assertEqual("a", message.content)

    def test_items_of_one_turn_become_one_assistant_message(self) -> None:
        items = [question("sys", "developer"), question("q"), reasoning("hm"), answer("look"), call("a"), call("b")]
        self.assertEqual(
            [
                system("sys"), user("q"), assistant("look", ("a", "Read", "{}"), ("b", "Read", "{}"), reasoning="hm"),
                result("a"), result("b"), assistant("done", reasoning="ah"),
            ],
            messages(*items, output("a"), output("b"), reasoning("ah"), answer("done")),
        )  # fmt: skip

    def test_blank_reasoning_is_kept_only_where_it_is_all_there_is(self) -> None:
        for kept, thoughts in ((" ", (" ",)), ("a\n\nb", ("a", " ", "b"))):
            self.assertEqual([assistant("x", reasoning=kept)], messages(*map(reasoning, thoughts), answer("x")))

    def test_items_are_divided_into_turns(self) -> None:
        a, b = ("a", "Read", "{}"), ("b", "Read", "{}")
        for name, items, expected in (
            ("text after calls", [call("a"), answer("x"), call("b")], [assistant("x", a, b)]),
            ("reasoning between calls", [reasoning("1"), call("a"), reasoning("2"), call("b")],
             [assistant("", a, b, reasoning="1\n\n2")]),
            ("one by one", [call("a"), output("a"), call("b")], [assistant("", a), result("a"), assistant("", b)]),
            ("two answers", [answer("x"), answer("y")], [assistant("x"), assistant("y")]),
            ("rethought", [answer("x"), reasoning("2"), answer("y")], [assistant("x"), assistant("y", reasoning="2")]),
            ("a question after a call", [call("a"), question("q")], [assistant("", a), user("q")]),
            ("stopped while thinking", [reasoning("1"), question("q")], [assistant("", reasoning="1"), user("q")]),
            ("thoughts nobody can read", [reasoning(), question("q")], [user("q")]),
        ):  # fmt: skip
            self.assertEqual(expected, messages(*items), name)

    def test_only_plain_reasoning_items_are_reasoning(self) -> None:
        summary = [{"type": "summary_text", "text": "short"}]
        for item in (reasoning(), reasoning(summary=summary), reasoning(encrypted_content="x"), reasoning(content=[])):
            self.assertEqual([assistant("x")], messages(item, answer("x")))
        self.assertEqual([assistant("x", reasoning="")], messages(reasoning(""), answer("x")))

    def test_a_call_item_into_a_namespace_gets_its_upstream_name(self) -> None:
        upstream_names = {("agents", "spawn"): "agents__spawn_0123456789"}
        for namespace, name, expected in (
            ("agents", "spawn", "agents__spawn_0123456789"), ("agents", "wait", "agents__wait"),
            ("clock.v1", "now", "clock_v1__now_d18367a464"), ("", "spawn", "spawn"), (None, "spawn", "spawn"),
        ):  # fmt: skip
            for kind, arguments in (("function_call", "{}"), ("custom_tool_call", '{"input":"{}"}')):
                item = {"type": kind, "call_id": "a", "name": name, "arguments": "{}", "input": "{}"}
                found = input_items.read([{**item, "namespace": namespace}], tools=ToolNames(upstream=upstream_names))
                self.assertEqual((assistant("", ("a", expected, arguments)),), found.messages)

    def test_the_output_of_a_call_item_may_be_parts(self) -> None:
        image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
        (found,) = messages(output("a", [{"type": "input_text", "text": "x"}, image]))
        self.assertEqual(["text", "image_url"], [part["type"] for part in found.content])  # type: ignore[index]
        self.assertEqual([result("a", "x\ny")], messages(output("a", ["x", {"type": "output_text", "text": "y"}])))

    def test_the_id_of_an_item_leaves_the_id_of_its_call(self) -> None:
        """pi 0.74 joins the two when the model or the API is switched, and cuts them at 64 characters."""
        whole = "call_00_a1B2c3D4e5F6g7H8i9J0_fc_9d9550cfe6fa6fa0d2afaccdc42ba1a6_2"
        for given in (whole, whole[:64], "call_00_a1B2c3D4e5F6g7H8i9J0"):
            turn, ended = messages(call(given), output(given))
            self.assertEqual(("call_00_a1B2c3D4e5F6g7H8i9J0",) * 2, (turn.tool_calls[0].id, ended.tool_call_id), given)
        for given in ("call_fc_1", "fc_9d9550cfe6fa6fa0d2af", "call_00_fc_abc", "call_number_fc_deadbeef_of_ours"):
            self.assertEqual(given, messages(call(given))[0].tool_calls[0].id)

    def test_arguments_of_a_call_item_become_a_string(self) -> None:
        for arguments, text in (({"a": 1}, '{"a":1}'), (None, ""), ("{", "{")):
            self.assertEqual((ToolCall("a", "Read", text),), messages(call("a", arguments))[0].tool_calls)


class TestGrownHistory(unittest.TestCase):
    def long_history(self) -> list[Any]:
        items: list[Any] = []
        for number in range(6):
            own = {"id": f"rs_{number:032x}_0"} if number % 2 else {}
            c, d = f"c{number}", f"d{number}"
            items += question(f"q {number}"), reasoning("hm", **own), answer(f"text {number}"), {"type": "odd"}
            items += reasoning("more"), call(c), call(d), output(c), output(d)
            items += reasoning("again"), answer("one"), answer("two"), {"type": "what", "says": number}
        return items

    def test_items_of_a_grown_history_are_read_like_new_ones(self) -> None:
        memory, whole = new_chat(), self.long_history()
        for count in (*range(1, len(whole)), 20, 50, 30):
            grown = input_items.read(whole[:count], memory=memory)
            self.assertEqual(input_items.read(whole[:count]), grown, count)

    def test_items_are_read_again_if_upstream_names_differ(self) -> None:
        items = [{**each, "namespace": "n"} if "name" in each else each for each in self.long_history()]
        memory, names = new_chat(), []
        for name in ("one", "two", "one"):
            found = input_items.read(items, tools=ToolNames(upstream={("n", "Read"): name}), memory=memory).messages
            names.append({each.name for message in found for each in message.tool_calls})
        self.assertEqual([{"one"}, {"two"}, {"one"}], names)


SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}


class TestServerItems(unittest.TestCase):
    def read(self, *items: Any) -> list[Message]:
        return list(input_items.read(list(items), keep_server_items=True).messages)

    def turn(self, *items: Any) -> tuple[str | None, Any, list[dict[str, Any]]]:
        """The one turn of these items: its reasoning, its text, and the items in their places."""
        [message] = self.read(*items)
        return message.reasoning, message.content, unpack_items(message, "responses")

    def test_a_search_is_part_of_its_turn_in_its_place(self) -> None:
        places = [{"type": "thinking", "length": 3}, SEARCH, {"type": "thinking", "length": 2}]
        self.assertEqual(
            ("Hm.So", "Rain.", [*places, {"type": "text", "length": 5}]),
            self.turn(reasoning("Hm."), SEARCH, reasoning("So"), answer("Rain.")),
        )
        self.assertEqual((None, "", [SEARCH]), self.turn(SEARCH))

    def test_a_turn_continues_after_a_search_until_its_text(self) -> None:
        first = [reasoning("Hm."), answer("I look."), SEARCH, reasoning("So."), answer("Rain.")]
        self.assertEqual(1, len(self.read(*first)))
        for following in ([answer("Again.")], [reasoning("And?"), answer("Again.")]):
            self.assertEqual(2, len(self.read(*first, *following)))
        self.assertEqual(1, len(self.read(SEARCH, SEARCH, call("a"))))
        self.assertEqual(3, len(self.read(SEARCH, call("a"), output("a"), answer("Done."))))

    def test_ids_that_we_made_up_are_left_out_and_null_is_absent(self) -> None:
        bare = {name: value for name, value in SEARCH.items() if name != "id"}
        suffix = "0123456789abcdef" * 2
        for made_up in (f"ws_{suffix}_3", f"ws_{suffix}_i12", None, ""):
            self.assertEqual([bare], self.turn({**SEARCH, "id": made_up, "results": None})[2], made_up)

    def test_unknown_calls_stay_and_those_of_other_servers_do_not(self) -> None:
        odd = {"type": "odd_call", "data": [1]}
        for item in HOSTED:
            found = self.turn(odd, item, answer("a"))[2] if not item["type"].endswith("_output") else [odd]
            with self.subTest(item["type"]):
                expected = [odd, item] if item["type"] == "web_search_call" else [odd]
                self.assertEqual(expected, [each for each in found if each["type"] != "text"])

    def test_they_are_left_out_where_deepseek_does_not_get_them(self) -> None:
        found = input_items.read([SEARCH, answer("a")])
        self.assertEqual(((assistant("a"),), ("input item web_search_call",)), (found.messages, found.dropped))


class TestOtherItems(unittest.TestCase):
    def test_items_of_other_servers_are_reported_as_dropped(self) -> None:
        """They were user messages of raw JSON, images in base64 included."""
        for item in HOSTED:
            found = input_items.read([question("q"), item, question("and?")])
            with self.subTest(item["type"]):
                self.assertEqual((user("q"), user("and?")), found.messages)
                self.assertEqual((f"input item {item['type']}",), found.dropped)

    def test_a_dropped_call_item_does_not_end_a_turn(self) -> None:
        search = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"query": "x"}}
        self.assertEqual([assistant("Rain.", reasoning="Hm.")], messages(reasoning("Hm."), search, answer("Rain.")))

    def test_a_dropped_output_item_ends_a_turn(self) -> None:
        result = {"type": "local_shell_call_output", "id": "a", "output": "42"}
        found = messages(answer("I look."), {"type": "local_shell_call", "id": "a"}, result, answer("It is 42."))
        self.assertEqual([assistant("I look."), assistant("It is 42.")], found)

    def test_a_part_in_place_of_an_item_is_a_user_message(self) -> None:
        image = {"type": "input_image", "image_url": "https://x.test/a.png"}
        self.assertEqual(user("q"), messages({"type": "input_text", "text": "q"})[0])
        self.assertEqual("image_url", messages(image)[0].content[0]["type"])  # type: ignore[index]

    def test_our_compaction_item_becomes_a_system_message_and_one_of_another_server_is_dropped(self) -> None:
        sealer = Sealer(b"secret", b"caller")
        item = {"type": "compaction", "id": "cmp_1", "encrypted_content": sealer.seal("They looked at a.py.")}
        foreign = {**item, "encrypted_content": "gAAAAABpM0Yj"}
        found = input_items.read(fields.unseal([question("q"), item, foreign], Opener(sealer, 1000)))
        self.assertEqual(["user", "system"], [message.role for message in found.messages])
        self.assertTrue(str(found.messages[1].content).endswith("\n\nThey looked at a.py."))
        self.assertEqual(("input item compaction",), found.dropped)

    def test_tools_declared_among_the_items_are_found(self) -> None:
        tool = {"type": "function", "name": "x"}
        declared = {"type": "additional_tools", "role": "developer", "tools": [tool, 7]}
        found = input_items.declared_tools([declared, question("q"), 7, {**declared, "tools": None}, declared])
        places = ["input[0].tools[0]", "input[0].tools[1]", "input[4].tools[0]", "input[4].tools[1]"]
        self.assertEqual(list(zip([tool, 7, tool, 7], places, strict=True)), found)
        self.assertEqual([user("q")], messages(declared, question("q")))
        for nothing in ("q", None, 7, [], {}):
            self.assertEqual([], input_items.declared_tools(nothing))
        with self.assertRaises(BadRequest) as caught:
            input_items.declared_tools([{**declared, "tools": 7}], "messages")
        self.assertEqual("messages[0].tools", caught.exception.param)

    def test_a_bad_item_is_a_400_that_names_it(self) -> None:
        rows = (
            ("", 7),
            (".type", {"type": 7}),
            (".role", {}, {"type": "message", "role": 7}),
            (".content", {"role": "user", "content": 7}, reasoning(content=7)),
            (".content[0]", reasoning(content=[7])),
            (".content[0].text", reasoning(content=[{"text": 7}])),
            (".call_id", {**call("a"), "call_id": 7}, {**output("a"), "call_id": 7}),
            (".name", {**call("a"), "name": 7}),
            (".input", {"type": "custom_tool_call", "input": 7}),
            (".output", output("a", 7)),
            (".namespace", {**call("a"), "namespace": 7}, {"type": "custom_tool_call", "name": "x", "namespace": []}),
        )
        assert_named(self, messages, "input[0]", *rows)
        assert_named(self, input_items.read, "input", ("", 7, {}, True))
