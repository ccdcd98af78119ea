import unittest
from typing import Any

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols import chat_tools
from deepseek_cursor_proxy.wire import encode_json

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
NESTED: dict[str, Any] = {"type": "function", "function": {"name": "Shell", "description": "d", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "Read", "description": "d", "parameters": SCHEMA, "strict": False}
BARE = {"name": "Write", "description": "d", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: hunk+"}
CUSTOM = {"type": "custom", "name": "ApplyPatch", "description": "Patches.", "format": GRAMMAR}
SEARCH = {"type": "web_search", "external_web_access": True}


def read(*tools: Any, **body: Any) -> chat_tools.Toolbox:
    return chat_tools.read({"tools": list(tools), **body})


def function(tool: Any) -> Any:
    return read(tool).tools[0]["function"]


class TestShapes(unittest.TestCase):
    def test_all_shapes_in_one_list_become_functions_in_their_order(self) -> None:
        box = read(NESTED, FLAT, BARE, CUSTOM)
        self.assertEqual({"function"}, {tool["type"] for tool in box.tools})
        self.assertEqual(["Shell", "Read", "Write", "ApplyPatch"], [tool["function"]["name"] for tool in box.tools])
        self.assertEqual(({"ApplyPatch"}, []), (box.custom, box.dropped))

    def test_a_plain_tool_is_what_reading_with_all_care_makes_of_it(self) -> None:
        function = NESTED["function"]
        odd = [{**NESTED, **more} for more in ({"x": 1}, {"type": None}, {"input_schema": {}}, {"function": None})]
        names: tuple[Any, ...] = ({"name": ""}, {"name": 1}, {"description": 1}, {"parameters": None}, {"x": 1})
        odd += [{"type": "function", "function": {**function, **more}} for more in names]
        odd += [{"type": "function", "function": {**function, "strict": strict}} for strict in (None, True, 1)]
        for tool in (NESTED, FLAT, BARE, CUSTOM, SEARCH, {}, None, *odd):
            if chat_tools._is_plain(tool):
                read_with_care = chat_tools._read_tool(tool, "tools[0]", chat_tools.Toolbox())
                self.assertEqual(encode_json(tool), encode_json(read_with_care))
        self.assertTrue(chat_tools._is_plain(NESTED))

    def test_each_keeps_what_it_says(self) -> None:
        self.assertEqual(NESTED, read(NESTED).tools[0])
        self.assertEqual({key: FLAT[key] for key in FLAT if key != "type"}, function(FLAT))
        self.assertEqual({"name": "Write", "description": "d", "parameters": SCHEMA}, function(BARE))
        self.assertEqual(function(BARE), function({"type": "custom", **BARE}))
        self.assertEqual({"name": "x"}, function({"name": "x", "input_schema": None}))

    def test_a_custom_tool_takes_one_text(self) -> None:
        nested = {"name": "ApplyPatch", "description": "Patches.", "format": {"type": "grammar", "grammar": GRAMMAR}}
        for tool in (CUSTOM, {"type": "custom", "custom": nested}):
            found = function(tool)
            self.assertEqual(["input"], found["parameters"]["required"])
            self.assertEqual("string", found["parameters"]["properties"]["input"]["type"])
            self.assertEqual(1, len(found["parameters"]["properties"]))
            self.assertTrue(found["description"].startswith("Patches."))
            self.assertTrue(found["description"].endswith("this lark grammar:\nstart: hunk+"))
        for tool in ({"type": "custom", "name": "x"}, {"type": "custom", "name": "x", "format": {"type": "text"}}):
            self.assertNotIn("grammar", function(tool)["description"])

    def test_tools_nobody_runs_are_left_out_and_named(self) -> None:
        box = read(NESTED, SEARCH, {"type": "web_search_20250305", "name": "web_search"}, {"type": "namespace"})
        self.assertEqual([NESTED], box.tools)
        self.assertEqual(["tool web_search", "tool web_search_20250305", "tool namespace"], box.dropped)

    def test_of_two_with_one_name_the_first_stays(self) -> None:
        box = read(CUSTOM, {"type": "function", "name": "ApplyPatch"}, NESTED)
        self.assertEqual(["ApplyPatch", "Shell"], [tool["function"]["name"] for tool in box.tools])
        self.assertEqual(({"ApplyPatch"}, ["second tool ApplyPatch"]), (box.custom, box.dropped))
        self.assertEqual(set(), read({"type": "function", "name": "ApplyPatch"}, CUSTOM).custom)

    def test_strict_is_for_the_beta_path_alone(self) -> None:
        strict = {"type": "function", "name": "x", "strict": True}
        box = read(strict)
        self.assertEqual([{"type": "function", "function": {"name": "x"}}], box.tools)
        self.assertEqual(["tools strict"], box.dropped)
        kept = chat_tools.read({"tools": [strict]}, keep_strict=True)
        self.assertEqual({"name": "x", "strict": True}, kept.tools[0]["function"])

    def test_odd_tools_are_named(self) -> None:
        for tool, param in (
            (7, ""),
            ({"type": []}, ".type"),
            ({}, ".function"),
            ({"function": 7}, ".function"),
            ({"type": "function", "function": {"name": 7}}, ".function.name"),
            ({"type": "function", "name": ""}, ".name"),
            ({"type": "function", "name": "x", "parameters": 7}, ".parameters"),
            ({"type": "function", "name": "x", "description": 7}, ".description"),
            ({"type": "function", "name": "x", "strict": 7}, ".strict"),
            ({"name": 7, "input_schema": {}}, ".name"),
            ({"name": "x", "input_schema": 7}, ".input_schema"),
            ({"type": "custom"}, ".name"),
            ({"type": "custom", "custom": {}}, ".custom.name"),
            ({"type": "custom", "name": "x", "format": 7}, ".format"),
            ({"type": "custom", "name": "x", "format": {"definition": 7}}, ".format.definition"),
            ({"type": "custom", "name": "x", "format": {"grammar": {"syntax": 7}}}, ".format.grammar.syntax"),
            ({"type": "web_search", "name": 7}, ".name"),
        ):
            with self.subTest(tool), self.assertRaises(BadRequest) as caught:
                read(tool)
            self.assertEqual("tools[0]" + param, caught.exception.param)


class TestChoice(unittest.TestCase):
    def test_every_way_to_name_a_tool_is_deepseeks_way(self) -> None:
        for choice in (
            {"type": "function", "function": {"name": "ApplyPatch"}},
            {"type": "function", "name": "ApplyPatch"},
            {"type": "custom", "name": "ApplyPatch"},
            {"type": "custom", "custom": {"name": "ApplyPatch"}},
            {"type": "tool", "name": "ApplyPatch", "disable_parallel_tool_use": True},
        ):
            named = {"type": "function", "function": {"name": "ApplyPatch"}}
            self.assertEqual(named, read(NESTED, CUSTOM, tool_choice=choice).choice)

    def test_every_way_not_to(self) -> None:
        for choice, word in (
            ("auto", "auto"),
            ("none", "none"),
            ("required", "required"),
            ("any", "required"),
            ({"type": "any"}, "required"),
            ({"type": "auto"}, "auto"),
            ({"type": "none"}, "none"),
            ({"type": "allowed_tools", "mode": "required", "tools": []}, "required"),
            ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, "auto"),
            (None, None),
        ):
            self.assertEqual(word, read(NESTED, tool_choice=choice).choice)

    def test_without_tools_there_is_nothing_to_choose(self) -> None:
        for choice in ("auto", "none", "required", {"type": "any"}):
            self.assertIsNone(read(tool_choice=choice).choice)

    def test_forcing_what_cannot_be_done_is_a_400_that_names_it(self) -> None:
        hosted = {"type": "web_search_20250305", "name": "searcher"}
        for tools, choice, named in (
            ([NESTED, SEARCH], {"type": "web_search"}, "web_search"),
            ([SEARCH], "required", "web_search"),
            ([NESTED, hosted], {"type": "tool", "name": "searcher"}, "searcher"),
            ([NESTED], {"type": "function", "name": "Missing"}, "Missing"),
            ([NESTED], {"type": "file_search"}, "file_search"),
        ):
            with self.subTest(choice=choice), self.assertRaises(BadRequest) as caught:
                read(*tools, tool_choice=choice)
            self.assertIn(named, caught.exception.message)
            self.assertEqual("tool_choice", caught.exception.param)

    def test_odd_choices_are_named(self) -> None:
        for choice in (
            7,
            [],
            "sometimes",
            {},
            {"type": 7},
            {"type": "function"},
            {"type": "allowed_tools", "mode": "x"},
        ):
            with self.subTest(choice=choice), self.assertRaises(BadRequest) as caught:
                read(NESTED, tool_choice=choice)
            self.assertTrue(str(caught.exception.param).startswith("tool_choice"))
