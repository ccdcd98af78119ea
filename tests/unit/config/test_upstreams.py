import unittest

from deepseek_cursor_proxy.config.settings import ProxyConfig
from deepseek_cursor_proxy.config.upstreams import HOSTS, UpstreamTable, listed_models, serving, split_name
from tests.support.configs import ConfigTestCase

URL = 'base_url = "https://x.example"\n'
PART = "[upstreams.a]\n" + URL
REFUSED = (
    ("upstreams = 1", "upstreams = 1 is not a table"),
    ("[upstreams]\na = 1", "upstreams.a = 1 is not a table; write [upstreams.NAME] with a base_url"),
    ("[upstreams.a]", "upstreams.a has no base_url"),
    ('[upstreams."a/b"]\n' + URL, "is not a name of letters, digits, - and _"),
    (PART + "keyenv = 1", 'unknown key upstreams.a.keyenv ({file}); did you mean "key_env"?'),
    (PART + "retries = 1", "unknown key upstreams.a.retries"),
    ('[upstreams.a]\nbase_url = "x.example"', 'upstreams.a.base_url = "x.example" is not an http(s) address'),
    ('[upstreams.a]\nbase_url = "https://me:pw@x"', "is not an http(s) address"),
    ('[upstreams.a]\nbase_url = "http://x.example"', "would send your key in clear over the network"),
    (PART + 'host = "openruter"', f'upstreams.a.host = "openruter" is not one of {", ".join(HOSTS)}'),
    (PART + 'key_env = "sk-secret-key"', "upstreams.a.key_env is not the name of an environment variable"),
    (PART + 'key_env = ["A", "sk-secret-key"]', "upstreams.a.key_env is not the name of an environment variable"),
    (PART + "key_env = []", "upstreams.a.key_env is not the name of an environment variable"),
    (PART + "models = []", "upstreams.a.models = [] serves nothing"),
    (PART + "models = {}", "upstreams.a.models = {} serves nothing"),
    (PART + 'models = "x"', 'upstreams.a.models = "x" is not a list'),
    (PART + 'models = ["x", 1]', "upstreams.a.models = ['x', 1] is not a list"),
    (PART + 'models = ["a*b"]', 'upstreams.a.models."a*b" = "a*b" is not a model\'s name'),
    (PART + 'models = {x = "y*"}', 'upstreams.a.models.x = "y*" ends in *'),
    (PART + "priority = 0", "upstreams.a.priority = 0 is not a whole number from 1"),
    (PART + "weight = 1.5", "upstreams.a.weight = 1.5 is not a whole number"),
    (PART + "max_calls = true", "upstreams.a.max_calls = True is not a whole number"),
    (PART + "options = 1", "upstreams.a.options = 1 is not a table of raw fields"),
    (PART + "[upstreams.a.options]\nmessages = 1", "upstreams.a.options.messages = "),
    (PART + "[upstreams.A]\n" + URL, "[upstreams.a] and [upstreams.A] have the same name"),
    (PART + "[host_options]\nx = 1", "[host_options] is for base_url; write [upstreams.NAME.options]"),
    (PART + 'key_env = "A"', "every [upstreams] table has a key_env, and without access_keys no client may spend"),
)


TABLES = {
    "any": UpstreamTable("https://a"),
    "some": UpstreamTable("https://b", models={"deepseek-v4-pro": "deepseek-v4-pro", "v4/flash": "v4/flash"}),
    "other": UpstreamTable("https://c", models={"deepseek-*": "ds/deepseek-*", "deepseek-flash": "f", "x*": "y"}),
}


class TestTables(ConfigTestCase):
    def test_a_table_with_everything(self) -> None:
        table = PART + (
            'host = "openrouter"\nkey_env = ["A", "B"]\nmodels = {"deepseek-*" = "deepseek/deepseek-*", x = "y"}\n'
            "priority = 2\nweight = 3\nmax_calls = 4\noptions = {provider = {only = ['deepseek']}}\n"
        )
        loaded = self.load('access_keys = ["sk-0123456789abcdef"]\n' + table)
        expected = UpstreamTable(
            "https://x.example", "openrouter", ("A", "B"), {"deepseek-*": "deepseek/deepseek-*", "x": "y"}, 2, 3, 4,
            {"provider": {"only": ["deepseek"]}},
        )  # fmt: skip
        self.assertEqual({"a": expected}, loaded.config.upstreams)
        self.assertEqual(4, loaded.config.most_calls("a"))
        self.assertEqual(480, loaded.config.most_calls("b"))
        self.assertEqual(2400, loaded.config.most_calls("deepseek-v4-flash"))

    def test_tables_may_be_built_from_plain_values(self) -> None:
        given = {"base_url": "https://x/", "key_env": "A", "models": ["m"]}
        config = ProxyConfig(upstreams={"a": given})  # type: ignore[dict-item]
        self.assertEqual({"a": UpstreamTable("https://x", key_env=("A",), models={"m": "m"})}, config.upstreams)
        self.assertIsInstance(hash(config), int)

    def test_a_bad_table_is_refused_in_one_line(self) -> None:
        self.assert_refused(REFUSED)


class TestModels(unittest.TestCase):
    def test_the_name_of_a_model_at_each_upstream(self) -> None:
        for model, expected in (
            ("deepseek-v4-pro", {"any": "deepseek-v4-pro", "some": "deepseek-v4-pro", "other": "ds/deepseek-v4-pro"}),
            ("DeepSeek-Flash", {"any": "DeepSeek-Flash", "other": "f"}),
            ("xyz", {"any": "xyz", "other": "y"}),
            ("kimi", {"any": "kimi"}),
            ("some/kimi", {"some": "kimi"}),
            ("other/deepseek-flash", {"other": "f"}),
            ("OTHER/xyz", {"other": "y"}),
        ):
            self.assertEqual(expected, serving(model, TABLES), model)

    def test_a_listed_name_with_a_slash_is_no_upstream_of_that_name(self) -> None:
        tables = {**TABLES, "v4": UpstreamTable("https://d")}
        self.assertIsNone(split_name("v4/flash", tables))
        self.assertEqual(("v4", "pro"), split_name("v4/pro", tables))
        for name in ("v4", "v4/", "/x", "nobody/x"):
            self.assertIsNone(split_name(name, tables))

    def test_listed_names_come_once_and_in_order(self) -> None:
        self.assertEqual(("deepseek-v4-pro", "v4/flash", "deepseek-flash"), listed_models(TABLES))
