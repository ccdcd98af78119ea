import random
import re
import unittest

from deepseek_cursor_proxy.protocols.tools import QualifiedName, describe_inner, upstream_name, upstream_names

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
            (("n" * 30, "t" * 33), "n" * 20 + "__" + "t" * 31 + "_3310cfcdd8"),
            (("a", "b\n"), "a__b__37ede0c996"),
            (("工具", "读"), "______7e707bfb9f"),
            (("\ud800", "x" * 200), "___" + "x" * 31 + "_ac8c67bc3e"),
        ):
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
