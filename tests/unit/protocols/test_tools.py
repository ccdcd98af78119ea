import json
import random
import re
import unittest
from collections.abc import Sequence
from typing import Any

from deepseek_cursor_proxy.conversation import CallPiece, Delta
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.protocols import tools as request_tools
from deepseek_cursor_proxy.protocols.tools import (
    CustomCallUnwrapper,
    FreeTextReader,
    QualifiedName,
    ToolNames,
    describe_inner,
    echoed_message,
    read_free_text,
    upstream_name,
    upstream_names,
    wrap_text,
)
from tests.support.bad_requests import assert_named
from tests.support.histories import assistant

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
        untyped, unknown = {"function": {"name": "Grep"}}, {"type": "new", "function": {"name": "Edit"}}
        tool_set = read(NESTED, FLAT, BARE, CUSTOM, untyped, unknown)
        self.assertEqual({"function"}, {tool["type"] for tool in tool_set.tools})
        self.assertEqual(["Shell", "Read", "Write", "ApplyPatch", "Grep"], names(tool_set))
        self.assertEqual(({"ApplyPatch"}, ["tool new"]), (tool_set.custom, tool_set.dropped))

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
            ("", 7), *((f".function.{name}", tool) for name, tool in odd.items()),
            (".type", {"type": []}, {"type": 7}), (".function", {}, {"function": 7}, {"type": "function"}),
            (".function.name", *nested), (".name", *names), (".parameters", function(parameters=7)),
            (".description", function(description=7), group(description=7)), (".strict", function(strict=7)),
            (".input_schema", {"name": "x", "input_schema": 7}), (".custom.name", {"type": "custom", "custom": {}}),
            (".format", custom(format=7)), (".format.definition", custom(format={"definition": 7})),
            (".format.grammar.syntax", custom(format={"grammar": {"syntax": 7}})),
            (".tools", no_tools, {**no_tools, "tools": None}, {**no_tools, "tools": {}}),
            (".tools[1]", group(FLAT, 7)), (".tools[0].function", group({"type": "function"})),
            (".tools[0].name", group({"type": "custom"})),
        )  # fmt: skip
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
            {"type": "function", "function": {"name": "ApplyPatch"}}, {"type": "function", "name": "ApplyPatch"},
            {"type": "custom", "name": "ApplyPatch"}, {"type": "custom", "custom": {"name": "ApplyPatch"}},
            {"type": "tool", "name": "ApplyPatch", "disable_parallel_tool_use": True},
        ):  # fmt: skip
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


LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Parts of hostile names: separators, other scripts, halves of surrogate pairs, length.
PIECES = ("a", "b", "_", "__", "-", ".", " ", "/", "é", "工具", "😀", "\ud800", "\x00", "\n", '"', "x" * 30, "y" * 200)


def generated(seed: int, size: int) -> list[QualifiedName]:
    rng = random.Random(seed)
    found: dict[QualifiedName, None] = {}
    while len(found) < size:
        namespace, name = ("".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(2))
        found[namespace, name] = None
    return list(found)


class TestUpstreamName(unittest.TestCase):
    def test_a_valid_upstream_name_is_namespace_and_name(self) -> None:
        for tool in (("multi_agent_v1", "spawn_agent"), ("mcp__files", "read"), ("a-b_", "_c"), ("n" * 30, "t" * 32)):
            self.assertEqual("__".join(tool), upstream_name(tool))

    def test_a_long_upstream_name_is_hashed_alike_in_every_release(self) -> None:
        """Another hash would cost running chats their reasoning and their cache."""
        for inner, name in (
            (("clock.v1", "now"), "clock_v1__now_d18367a464"),
            (("n" * 30, "t" * 33), "n" * 20 + "__" + "t" * 31 + "_3310cfcdd8"), (("a", "b\n"), "a__b__37ede0c996"),
            (("工具", "读"), "______7e707bfb9f"), (("\ud800", "x" * 200), "___" + "x" * 31 + "_ac8c67bc3e"),
        ):  # fmt: skip
            self.assertEqual(name, upstream_name(inner), inner)


class TestUpstreamNames(unittest.TestCase):
    def test_every_upstream_name_belongs_to_one_tool(self) -> None:
        inner = generated(2, 1000)
        names = upstream_names(inner, ())
        self.assertEqual(set(inner), set(names))
        self.assertEqual(1000, len(set(names.values())))
        for name in names.values():
            self.assertRegex(name, rf"\A{LEGAL.pattern}\Z")

    def test_upstream_names_do_not_depend_on_the_order_of_tools(self) -> None:
        inner = [*generated(3, 300), ("a__b", "c"), ("a", "b__c")]
        taken = [upstream_name(each) for each in inner[:50]]
        names = upstream_names(inner, taken)
        random.Random(3).shuffle(inner)
        self.assertEqual(names, upstream_names(inner, taken[::-1]))

    def test_two_tools_that_collide_both_get_another_upstream_name(self) -> None:
        names = upstream_names([("a__b", "c"), ("a", "b__c"), ("a", "x")], ())
        self.assertEqual("a__x", names["a", "x"])
        self.assertRegex(names["a__b", "c"], r"\Aa__b__c_[0-9a-f]{10}\Z")
        self.assertRegex(names["a", "b__c"], r"\Aa__b__c_[0-9a-f]{10}\Z")
        self.assertNotEqual(names["a__b", "c"], names["a", "b__c"])

    def test_a_function_keeps_its_name_even_if_it_equals_a_hashed_one(self) -> None:
        inner = ("a", "b")
        taken = ["a__b"]
        for _ in range(20):
            name = upstream_names([inner], taken)[inner]
            self.assertNotIn(name, taken)
            self.assertRegex(name, r"\Aa__b_[0-9a-f]{10}\Z")
            taken.append(name)


class TestDescribe(unittest.TestCase):
    def test_the_description_of_a_namespace_precedes_that_of_its_function(self) -> None:
        for description, words, expected in (
            ("Spawns.", "Tools for agents.", "Part of agents: Tools for agents.\n\nSpawns."),
            ("Spawns.", "Tools\n  for\tagents.\n", "Part of agents: Tools for agents.\n\nSpawns."),
            (None, "Tools.", "Part of agents: Tools."),
            ("", "Tools.", "Part of agents: Tools."),
            ("Spawns.", None, "Spawns."),
            ("Spawns.", " \n", "Spawns."),
            (None, None, None),
        ):
            self.assertEqual(expected, describe_inner(description, "agents", words), (description, words))

    def test_a_long_namespace_description_is_cut(self) -> None:
        found = describe_inner("d", "n" * 500, "w" * 5000) or ""
        self.assertLess(len(found), 450)
        self.assertTrue(found.endswith("w…\n\nd"))


PATCHER = "ApplyPatch"
NAMES = frozenset({PATCHER})
PATCH = '*** Begin Patch\n+say "hi"\n*** End Patch'


class TestWrap(unittest.TestCase):
    def test_wrapped_arguments_are_not_wrapped_again(self) -> None:
        for arguments in ('{"input": "x"}', '{"input":""}', wrap_text(PATCH)):
            self.assertEqual(arguments, wrap_text(arguments))

    def test_only_calls_of_custom_tools_are_wrapped(self) -> None:
        half = '{"path": "a'
        message = assistant("", ("a", "ApplyPatch", PATCH), ("b", "Read", half), ("c", "Read", "[]"), ("d", "Read", ""))
        found = [call.arguments for call in ToolNames(NAMES, {PATCHER, "Read"}).wrap_custom_calls(message).tool_calls]
        self.assertEqual([wrap_text(PATCH), half, "[]", ""], found)
        ordinary = assistant("", ("b", "Read", "{}"))
        self.assertEqual(ordinary, ToolNames(NAMES).wrap_custom_calls(ordinary))

    def test_free_text_is_wrapped_even_if_its_tool_is_gone(self) -> None:
        for text in (PATCH, "{ const files = 1 }", '{"half": ', "{" * 9, "[1, 2]", "42", "true", '"text"'):
            message = assistant("", ("a", PATCHER, text))
            gone = ToolNames(known={"Read"}).wrap_custom_calls(message)
            with self.subTest(text):
                self.assertEqual({"input": text}, json.loads(gone.tool_calls[0].arguments))
                self.assertEqual(ToolNames(NAMES, NAMES).wrap_custom_calls(message), gone)

    def test_calls_of_a_function_that_is_gone_keep_their_arguments(self) -> None:
        for arguments in ('{"path": "a"}', "{}", "", "null", "[]", '{"input": "x"}'):
            message = assistant("", ("a", "Read", arguments))
            self.assertEqual(message, ToolNames(known={PATCHER}).wrap_custom_calls(message))


class TestCustomCallUnwrapper(unittest.TestCase):
    def test_the_client_gets_the_text_of_a_custom_call_piece_by_piece(self) -> None:
        unwrapper = CustomCallUnwrapper(NAMES)
        pieces = [CallPiece(0, arguments=text) for text in ('{"inp', 'ut": "*** Be', "gin\\", 'n"', "}")]
        deltas = [Delta(calls=(piece,)) for piece in (CallPiece(0, "a", "ApplyPatch", ""), *pieces)]
        texts = [unwrapper.unwrap(delta).calls[0].arguments for delta in deltas]
        self.assertEqual(["", "", "*** Be", "gin", "\n", ""], texts)
        last = Delta(finish_reason="tool_calls")
        self.assertIs(last, unwrapper.unwrap(last))

    def test_other_arguments_of_a_custom_call_come_unchanged_at_the_end(self) -> None:
        for arguments in ('{"patch": "x"}', "[1]", PATCH):
            unwrapper = CustomCallUnwrapper(NAMES)
            first = unwrapper.unwrap(Delta(calls=(CallPiece(0, "a", "ApplyPatch", arguments),)))
            self.assertEqual("", first.calls[0].arguments)
            last = unwrapper.unwrap(Delta(finish_reason="tool_calls"))
            self.assertEqual((CallPiece(0, arguments=arguments),), last.calls)
            self.assertEqual((), unwrapper.unwrap(Delta(finish_reason="tool_calls")).calls)


class TestEchoedMessage(unittest.TestCase):
    def test_a_turn_with_custom_calls_is_stored_as_the_client_will_echo_it(self) -> None:
        """Whatever the model wrote: unwrapped for the client and wrapped again it is the same call."""
        whole = (
            json.dumps({"input": PATCH}, indent=2), json.dumps({"input": '{"input":"x"}'}), '{"input":"x","extra":1}',
        )  # fmt: skip
        halves = ('{"input": "half a pa', '{"input": "half\\u00')
        for arguments in (*whole, *halves, '{"patch":"x"}', "", "nonsense"):
            answer = assistant("", ("a", "ApplyPatch", arguments), ("b", "Read", '{"input": "x"}'))
            calls = tuple(CallPiece(at, *call) for at, call in enumerate(answer.tool_calls))
            unwrapped = CustomCallUnwrapper(NAMES).unwrap(Delta(calls=calls), is_whole=True).calls
            echoed = assistant("", *((each.id, each.name, each.arguments) for each in unwrapped))
            self.assertEqual(echoed_message(answer, NAMES), ToolNames(NAMES).wrap_custom_calls(echoed), arguments)


SIGNS = "é思\U0001f600"
EDIT = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = \"\\n\"\n+x = '\t'\n*** End Patch\n"

# Arguments as the model may write them, and the text inside.
TABLE = {
    "plain": ('{"input": "hello"}', "hello"),
    "compact": ('{"input":"hello"}', "hello"),
    "spread out": ('\n { \t"input"\r\n :  "hello" \n } ', "hello"),
    "empty text": ('{"input":""}', ""),
    "a patch": (json.dumps({"input": EDIT}), EDIT),
    "a patch, not escaped to ASCII": (json.dumps({"input": SIGNS + EDIT}, ensure_ascii=False), SIGNS + EDIT),
    "every escape": (r'{"input":"\"\\\/\b\f\n\r\té\u0041"}', '"\\/\b\f\n\r\té' + "A"),
    "a pair of surrogates": (r'{"input":"a\ud83d\ude00b"}', "a\U0001f600b"),
    "upper-case hex": (r'{"input":"\uD83D\uDE00"}', "\U0001f600"),
    "half a pair": (r'{"input":"a\ud83db"}', "a\ud83db"),
    "half a pair at the end": (r'{"input":"a\ud83d"}', "a\ud83d"),
    "the wrong half first": (r'{"input":"\ude00\ud83d\ude00"}', "\ude00\U0001f600"),
    "a raw line break": ('{"input":"a\nb"}', "a\nb"),
    "an escape JSON does not know": (r'{"input":"\q\uZZ"}', r"\q\uZZ"),
    "a field too many behind it": ('{"input":"x","why":"y"}', "x"),
    "a field too many before it": ('{"why":["y"],"input":"x"}', "x"),
    "text that looks like arguments": (json.dumps({"input": '{"input": "x"}'}), '{"input": "x"}'),
    "broken off in the text": ('{"input":"ab', "ab"),
    "broken off in an escape": ('{"input":"ab\\', "ab"),
    "broken off in a code": ('{"input":"ab\\u00e', "ab"),
    "broken off between surrogates": (r'{"input":"ab\ud83d', "ab"),
    "broken off in the head": ('{"inp', ""),
    "nothing": ("", ""),
}  # fmt: skip
# Other arguments than declared are returned unchanged.
UNCHANGED = ("{}", "[]", "{{", "null", '"text"', EDIT, '{"patch": "x"}', '{"input": 7}', '{"input": null}')
UNCHANGED += ('{"in put": "x"}', '{"input" "x"}', '{"other": "half')


def read_all(fragments: Sequence[str]) -> str:
    reader = FreeTextReader()
    texts = [reader.feed(fragment) for fragment in fragments]
    return "".join([*texts, reader.end()])


class TestFreeTextReader(unittest.TestCase):
    def test_free_text_is_the_same_however_its_arguments_are_cut(self) -> None:
        cases = {**TABLE, **{text: (text, text) for text in UNCHANGED}}
        for name, (arguments, text) in cases.items():
            with self.subTest(name):
                self.assertEqual((text, text), (read_free_text(arguments), read_all(arguments)))
                for at in range(len(arguments) + 1):
                    self.assertEqual(text, read_all([arguments[:at], arguments[at:]]), at)

    def test_free_text_is_returned_as_soon_as_it_is_known(self) -> None:
        reader = FreeTextReader()
        texts = [reader.feed(piece) for piece in ('{"input"', ': "ab', "c\\", 'n\\"d', '"', "}")]
        self.assertEqual(["", "ab", "c", '\n"d', "", ""], texts)
        self.assertEqual("", reader.end())

    def test_any_free_text_survives_the_round_trip(self) -> None:
        rng = random.Random(3)
        letters = ("a", '"', "\\", "/", "u", "\n", "\x00", "é", "\U0001f600", "\ud83d", "\ude00", "{", "}", " ")
        for _ in range(300):
            text = "".join(rng.choice(letters) for _ in range(rng.randrange(12)))
            # Two halves side by side are one character, in JSON as in the answer.
            text = json.loads(json.dumps(text))
            for ascii_only in (True, False):
                arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
                pieces = []
                while arguments:
                    size = rng.randrange(1, 5)
                    pieces.append(arguments[:size])
                    arguments = arguments[size:]
                self.assertEqual(text, read_all(pieces), (text, pieces))
