import unittest
from typing import Any

from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols import tools as request_tools
from tests.support.bad_requests import assert_named

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
NESTED: dict[str, Any] = {"type": "function", "function": {"name": "Shell", "description": "d", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "Read", "description": "d", "parameters": SCHEMA, "strict": False}
BARE = {"name": "Write", "description": "d", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: hunk+"}
CUSTOM = {"type": "custom", "name": "ApplyPatch", "description": "Patches.", "format": GRAMMAR}
SEARCH = {"type": "web_search", "external_web_access": True}
FINDER = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}


def read(*tools: Any, **body: Any) -> request_tools.ToolSet:
    return request_tools.read({"tools": list(tools), **body})


def function(tool: Any) -> Any:
    return read(tool).tools[0]["function"]


class TestServerTools(unittest.TestCase):
    def test_tools_that_deepseek_runs_stay_as_they_are(self) -> None:
        tool_set = request_tools.read({"tools": [SEARCH, FLAT, SEARCH, FINDER]}, server_api="responses")
        self.assertEqual(
            ([SEARCH], ["Read"], ["tool tool_search"]), (tool_set.server, names(tool_set), tool_set.dropped)
        )

    def test_they_are_left_out_at_another_api(self) -> None:
        tool_set = request_tools.read({"tools": [SEARCH]}, server_api="chat")
        self.assertEqual(([], ["tool web_search"]), (tool_set.server, tool_set.dropped))

    def test_a_choice_forces_one_by_type_or_by_name(self) -> None:
        named = {"type": "web_search_20250305", "name": "web_search"}
        for tool, choice, api in (
            (SEARCH, {"type": "web_search"}, "responses"),
            (named, {"type": "tool", "name": "web_search"}, "messages"),
        ):
            with self.subTest(api):
                tool_set = request_tools.read({"tools": [tool], "tool_choice": choice}, server_api=api)
                self.assertEqual((choice, None), (tool_set.server_choice, tool_set.choice))

    def test_a_function_of_the_same_name_is_the_one_that_is_forced(self) -> None:
        named = {"type": "web_search_20250305", "name": "Write"}
        choice = {"type": "tool", "name": "Write"}
        tool_set = request_tools.read({"tools": [named, BARE], "tool_choice": choice}, server_api="messages")
        self.assertIsNone(tool_set.server_choice)
        self.assertEqual({"type": "function", "function": {"name": "Write"}}, tool_set.choice)

    def test_a_choice_of_one_that_is_not_there_is_refused(self) -> None:
        with self.assertRaises(BadRequest):
            request_tools.read({"tools": [FLAT], "tool_choice": {"type": "web_search"}}, server_api="responses")

    def test_any_tool_may_be_required_where_deepseek_runs_all_of_them(self) -> None:
        tool_set = request_tools.read({"tools": [SEARCH], "tool_choice": "required"}, server_api="responses")
        self.assertEqual("required", tool_set.choice)


class TestShapes(unittest.TestCase):
    def test_tools_of_all_shapes_become_functions_in_their_order(self) -> None:
        tool_set = read(NESTED, FLAT, BARE, CUSTOM)
        self.assertEqual({"function"}, {tool["type"] for tool in tool_set.tools})
        self.assertEqual(["Shell", "Read", "Write", "ApplyPatch"], names(tool_set))
        self.assertEqual(({"ApplyPatch"}, []), (tool_set.custom, tool_set.dropped))

    def test_a_custom_tool_becomes_a_function_with_one_string(self) -> None:
        nested = {"name": "ApplyPatch", "description": "Patches.", "format": {"type": "grammar", "grammar": GRAMMAR}}
        for tool, names in ((CUSTOM, set()), ({"type": "custom", "custom": nested}, {"ApplyPatch"})):
            found = function(tool)
            self.assertEqual(names, read(tool).nested)
            self.assertEqual(["input"], found["parameters"]["required"])
            self.assertEqual("string", found["parameters"]["properties"]["input"]["type"])
            self.assertEqual(1, len(found["parameters"]["properties"]))
            self.assertTrue(found["description"].startswith("Patches."))
            self.assertTrue(found["description"].endswith("this lark grammar:\nstart: hunk+"))
        for tool in ({"type": "custom", "name": "x"}, {"type": "custom", "name": "x", "format": {"type": "text"}}):
            self.assertNotIn("grammar", function(tool)["description"])

    def test_tools_that_deepseek_cannot_run_are_reported_as_dropped(self) -> None:
        tool_set = read(NESTED, SEARCH, {"type": "web_search_20250305", "name": "web_search"}, FINDER)
        self.assertEqual([NESTED], tool_set.tools)
        self.assertEqual(["tool web_search", "tool web_search_20250305", "tool tool_search"], tool_set.dropped)

    def test_of_two_tools_with_one_name_the_first_stays(self) -> None:
        tool_set = read(CUSTOM, {"type": "function", "name": "ApplyPatch"}, NESTED)
        self.assertEqual(["ApplyPatch", "Shell"], [tool["function"]["name"] for tool in tool_set.tools])
        self.assertEqual(({"ApplyPatch"}, ["second tool ApplyPatch"]), (tool_set.custom, tool_set.dropped))
        self.assertEqual(set(), read({"type": "function", "name": "ApplyPatch"}, CUSTOM).custom)

    def test_strict_tools_are_sent_to_the_beta_path_only(self) -> None:
        strict = {"type": "function", "name": "x", "strict": True}
        tool_set = read(strict)
        self.assertEqual([{"type": "function", "function": {"name": "x"}}], tool_set.tools)
        self.assertEqual(["tools strict"], tool_set.dropped)
        tool_set = request_tools.read({"tools": [strict]}, keep_strict=True)
        self.assertEqual({"name": "x", "strict": True}, tool_set.tools[0]["function"])
        # DeepSeek takes all of them so, or none, and not every schema.
        open_schema = {**strict, "name": "y", "parameters": {"properties": {"a": {"type": "string"}}}}
        for other in ({"type": "function", "name": "y"}, open_schema):
            tool_set = request_tools.read({"tools": [strict, other]}, keep_strict=True)
            self.assertNotIn("strict", repr(tool_set.tools))
            self.assertIn("tools strict", tool_set.dropped)

    def test_a_bad_tool_is_a_400_that_names_it(self) -> None:
        def function(**fields: Any) -> dict[str, Any]:
            return {"type": "function", "name": "x", **fields}

        def custom(**fields: Any) -> dict[str, Any]:
            return {"type": "custom", "name": "x", **fields}

        nested = [{"type": "function", "function": {**name}} for name in ({}, {"name": 7}, {"name": ""})]
        names = [function(name=""), {"name": 7, "input_schema": {}}, {"type": "custom"}]
        names += [{"type": "web_search", "name": 7}, {"type": "namespace", "tools": []}, group(name=""), group(name=7)]
        no_tools = {"type": "namespace", "name": "n"}
        odd = {name: {**NESTED, "function": {"name": "x", name: 7}} for name in ("description", "parameters", "strict")}
        rows = (
            ("", 7),
            *((f".function.{name}", tool) for name, tool in odd.items()),
            (".type", {"type": []}, {"type": 7}),
            (".function", {}, {"function": 7}, {"type": "function"}),
            (".function.name", *nested),
            (".name", *names),
            (".parameters", function(parameters=7)),
            (".description", function(description=7), group(description=7)),
            (".strict", function(strict=7)),
            (".input_schema", {"name": "x", "input_schema": 7}),
            (".custom.name", {"type": "custom", "custom": {}}),
            (".format", custom(format=7)),
            (".format.definition", custom(format={"definition": 7})),
            (".format.grammar.syntax", custom(format={"grammar": {"syntax": 7}})),
            (".tools", no_tools, {**no_tools, "tools": None}, {**no_tools, "tools": {}}),
            (".tools[1]", group(FLAT, 7)),
            (".tools[0].function", group({"type": "function"})),
            (".tools[0].name", group({"type": "custom"})),
        )
        assert_named(self, read, "tools[0]", *rows)


def group(*tools: Any, name: Any = "agents", **fields: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools), **fields}


def names(tool_set: request_tools.ToolSet) -> list[str]:
    return [tool["function"]["name"] for tool in tool_set.tools]


class TestToolNamespaces(unittest.TestCase):
    def test_tools_of_a_namespace_become_functions_at_its_position(self) -> None:
        tool_set = read(FLAT, group(NESTED, FLAT, BARE, CUSTOM, description="For agents."), NESTED)
        inside = ["Shell", "Read", "Write", "ApplyPatch"]
        self.assertEqual(["Read", *(f"agents__{name}" for name in inside), "Shell"], names(tool_set))
        self.assertEqual({("agents", name): f"agents__{name}" for name in inside}, tool_set.upstream_names)
        self.assertEqual({"function"}, {tool["type"] for tool in tool_set.tools})
        self.assertEqual(({"agents__ApplyPatch"}, []), (tool_set.custom, tool_set.dropped))
        shell = {"name": "agents__Shell", "description": "Part of agents: For agents.\n\nd", "parameters": SCHEMA}
        self.assertEqual({"type": "function", "function": shell}, tool_set.tools[1])
        self.assertTrue(tool_set.tools[4]["function"]["description"].endswith("this lark grammar:\nstart: hunk+"))

    def test_a_function_without_a_namespace_keeps_its_name_in_a_collision(self) -> None:
        outside = {"type": "function", "name": "agents__Read"}
        first, last = read(outside, group(FLAT)), read(group(FLAT), outside)
        self.assertEqual(names(first), names(last)[::-1])
        self.assertEqual("agents__Read", names(first)[0])
        self.assertRegex(names(first)[1], r"\Aagents__Read_[0-9a-f]{10}\Z")
        legacy = request_tools.read({"tools": [group(FLAT)], "functions": [{"name": "agents__Read"}]})
        self.assertEqual(names(last), names(legacy))

    def test_equal_tool_names_in_two_namespaces_are_two_tools(self) -> None:
        tool_set = read(group(FLAT), group(FLAT, name="others"), FLAT)
        self.assertEqual(["agents__Read", "others__Read", "Read"], names(tool_set))
        one, two = ({"name": name, "input_schema": {}} for name in ("c", "b__c"))
        tool_set = read(group(one, name="a__b"), group(two, name="a"))
        self.assertEqual(2, len(set(names(tool_set))))
        self.assertEqual({("a__b", "c"), ("a", "b__c")}, set(tool_set.upstream_names))

    def test_of_two_tools_with_one_name_in_a_namespace_the_first_stays(self) -> None:
        tool_set = read(group(CUSTOM, {**FLAT, "name": "ApplyPatch"}), group(CUSTOM, FLAT))
        self.assertEqual(["agents__ApplyPatch", "agents__Read"], names(tool_set))
        self.assertEqual({"agents__ApplyPatch"}, tool_set.custom)
        self.assertEqual(["second tool agents__ApplyPatch"] * 2, tool_set.dropped)

    def test_tools_in_a_namespace_that_deepseek_cannot_run_are_dropped(self) -> None:
        tool_set = read(group(SEARCH, FLAT, group(NESTED, name="deeper")))
        self.assertEqual(["agents__Read"], names(tool_set))
        self.assertEqual(["tool web_search", "tool namespace"], tool_set.dropped)
        self.assertEqual([], read(group()).tools)


class TestToolChoice(unittest.TestCase):
    def test_a_tool_choice_finds_a_tool_by_namespace_and_name(self) -> None:
        long = group(FLAT, CUSTOM, name="x" * 200)
        for choice in (
            {"type": "function", "name": "Read", "namespace": "x" * 200},
            {"type": "function", "function": {"name": "Read", "namespace": "x" * 200}},
            {"type": "custom", "name": "ApplyPatch", "namespace": "x" * 200},
        ):
            tool_set = read(NESTED, long, tool_choice=choice)
            name = "ApplyPatch" if choice["type"] == "custom" else "Read"
            expected = {"type": "function", "function": {"name": tool_set.upstream_names["x" * 200, name]}}
            self.assertEqual(expected, tool_set.choice)

    def test_every_form_of_a_tool_choice_becomes_deepseeks_form(self) -> None:
        for choice in (
            {"type": "function", "function": {"name": "ApplyPatch"}},
            {"type": "function", "name": "ApplyPatch"},
            {"type": "custom", "name": "ApplyPatch"},
            {"type": "custom", "custom": {"name": "ApplyPatch"}},
            {"type": "tool", "name": "ApplyPatch", "disable_parallel_tool_use": True},
        ):
            named = {"type": "function", "function": {"name": "ApplyPatch"}}
            self.assertEqual(named, read(NESTED, CUSTOM, tool_choice=choice).choice)

    def test_every_tool_choice_without_a_name_becomes_deepseeks_word(self) -> None:
        allowed = {"type": "allowed_tools", "tools": []}
        for word, *choices in (
            ("auto", "auto", {"type": "auto"}, {**allowed, "allowed_tools": {"mode": "auto"}}),
            ("none", "none", {"type": "none"}),
            ("required", "required", "any", {"type": "any"}, {**allowed, "mode": "required"}),
            (None, None),
        ):
            for choice in choices:
                self.assertEqual(word, read(NESTED, tool_choice=choice).choice)

    def test_without_tools_there_is_no_tool_choice(self) -> None:
        for choice in ("auto", "none", "required", {"type": "any"}):
            self.assertIsNone(read(tool_choice=choice).choice)

    def test_forcing_an_unsupported_tool_is_a_400_that_names_it(self) -> None:
        hosted = {"type": "web_search_20250305", "name": "searcher"}
        for tools, choice, named in (
            ([NESTED, SEARCH], {"type": "web_search"}, "web_search"),
            ([SEARCH], "required", "web_search"),
            ([NESTED, hosted], {"type": "tool", "name": "searcher"}, "searcher"),
            ([NESTED], {"type": "function", "name": "Missing"}, "Missing"),
            ([NESTED], {"type": "file_search"}, "file_search"),
            ([NESTED, FINDER], {"type": "tool_search"}, "tool_search"),
            ([group(SEARCH)], "required", "web_search"),
            ([group(SEARCH)], {"type": "function", "name": "web_search", "namespace": "agents"}, "web_search"),
            ([group(FLAT)], {"type": "function", "name": "Read"}, "Read"),
            ([group(FLAT), NESTED], {"type": "function", "name": "Shell", "namespace": "agents"}, "agents.Shell"),
            ([group(FLAT)], {"type": "namespace", "name": "agents"}, "namespace"),
        ):
            with self.subTest(choice=choice), self.assertRaises(BadRequest) as caught:
                read(*tools, tool_choice=choice)
            self.assertIn(named, caught.exception.message)
            self.assertEqual("tool_choice", caught.exception.param)

    def test_a_bad_tool_choice_is_a_400_that_names_it(self) -> None:
        function = {"type": "function"}
        odd = (7, [], "sometimes", {}, {"type": 7}, function, {"type": "allowed_tools", "mode": "x"})
        for choice in (*odd, {**function, "name": "Shell", "namespace": 7}):
            with self.subTest(choice=choice), self.assertRaises(BadRequest) as caught:
                read(NESTED, tool_choice=choice)
            self.assertTrue(str(caught.exception.param).startswith("tool_choice"))
