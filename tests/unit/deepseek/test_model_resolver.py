import time
import unittest
from typing import Any, ClassVar

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.deepseek.hosts import DEEPSEEK, UNKNOWN
from deepseek_cursor_proxy.deepseek.model_names import can_see_images, claude_name, offered_models, takes_later_system
from deepseek_cursor_proxy.deepseek.model_resolver import (
    ModelChoice,
    passthrough_key,
    refuse_unknown,
    resolve,
    resolve_claude,
)
from deepseek_cursor_proxy.errors import StartupError

PRO, FLASH = "deepseek-v4-pro", "deepseek-flash"
TABLE = {
    "gpt-5.6-sol": PRO, "gpt-*": FLASH, "gpt-5*": "gateway/five", "my-max": "gateway/max", "mine-max*": FLASH,
    "quick": "deepseek-flash-nothink", "Claude-Opus": "deepseek-v4-pro:max",
}  # fmt: skip
ROUTE = {"base_url": "https://x", "key_env": "K"}


def config(**settings: Any) -> ProxyConfig:
    return ProxyConfig(**{"upstream_model": "mine", **settings})


class TestResolve(unittest.TestCase):
    def assert_resolved(self, table: dict[ModelChoice, str], **settings: Any) -> None:
        for expected, names in table.items():
            for name in names.split("|"):
                self.assertEqual(expected, resolve(name, config(**settings)), name)

    def test_deepseeks_model_names_stay_and_others_become_the_configured_model(self) -> None:
        self.assert_resolved(
            {
                ModelChoice(PRO): PRO,
                ModelChoice(FLASH): "deepseek-flash|DeepSeek-Flash| deepseek-flash ",
                ModelChoice("deepseek-v4-flash"): "deepseek-v4-flash",
                ModelChoice("mine"): "deepseek-chat|gpt-4o|mine||-high",
            }
        )

    def test_suffixes_of_a_model_name_set_thinking_and_effort(self) -> None:
        words = ("minimal", "low", "medium", "high", "xhigh", "max", "ultra")
        self.assert_resolved({ModelChoice(PRO, word): f"deepseek-v4-pro-{word}" for word in words})
        self.assert_resolved(
            {
                ModelChoice(PRO): "deepseek-v4-pro-fast|deepseek-v4-pro[1m]",
                ModelChoice(
                    PRO, thinking=False
                ): "deepseek-v4-pro-nothink|deepseek-v4-pro:nothink|deepseek-v4-pro-none",
                ModelChoice(PRO, thinking=True): "deepseek-v4-pro-thinking|deepseek-v4-pro:thinking",
                ModelChoice(PRO, "high"): "deepseek-v4-pro(high)",
                ModelChoice(PRO, "max"): "deepseek-v4-pro (max)|deepseek-v4-pro:max",
            }
        )

    def test_of_several_suffixes_of_a_model_name_the_last_wins(self) -> None:
        self.assert_resolved(
            {
                ModelChoice(FLASH, "high"): "deepseek-flash-HIGH-Fast[1M]",
                ModelChoice(FLASH, "max"): "deepseek-flash-high-max",
                ModelChoice(FLASH, "max", True): "deepseek-flash-max-thinking",
                ModelChoice(FLASH, thinking=False): "deepseek-flash-thinking-nothink",
                ModelChoice("mine", "high"): "gpt-9-high-fast[1m]",
                ModelChoice("mine", "max"): "gpt-5.1-codex-max",
            }
        )

    def test_the_most_exact_line_of_the_models_table_wins(self) -> None:
        self.assert_resolved(
            {
                ModelChoice("mine"): "my",
                ModelChoice("gateway/five", "low"): "gpt-5.6-terra-low",
                ModelChoice("gateway/max"): "my-max",
                ModelChoice("gateway/max", "max"): "my-max-max",
                ModelChoice(PRO): "gpt-5.6-sol",
                ModelChoice(PRO, "low"): "claude-opus-low",
                ModelChoice(PRO, "high"): "GPT-5.6-Sol-high-fast[1m]",
                ModelChoice(PRO, "max"): "claude-opus",
                ModelChoice(FLASH): "gpt-4o-mini|mine-max",
                ModelChoice(FLASH, "low"): "mine-max-low|mine-maximal-low",
                ModelChoice(FLASH, "max"): "gpt-4o-mini-max",
                ModelChoice(FLASH, thinking=False): "quick",
                ModelChoice(FLASH, thinking=True): "quick-thinking",
            },
            models=TABLE,
        )

    def test_every_listed_name_means_the_same_with_claude_before_it(self) -> None:
        tables = {"other": {"base_url": "https://b", "models": {"kimi-k3": "moonshot/k3", "v/x": "v/x"}}}
        route = {"claude-*": ROUTE}
        for settings in (
            {"models": TABLE, "passthrough": route},
            {"models": {"claude-*": "gateway/five"}},
            {"upstream_host": "openrouter", "upstream_model": "owner/mine"},
            {"upstream_model": "kimi-k3", "upstreams": tables, "models": {"quick": "kimi-k3-high"}},
        ):
            for name in offered_models(config(**settings)):
                for suffix in ("", "-low", "[1m]"):
                    asked = claude_name(name) + suffix
                    with self.subTest(asked, **settings):
                        self.assertEqual(resolve(name + suffix, config(**settings)), resolve(asked, config(**settings)))
                        if name in (PRO, FLASH):
                            self.assertIsNone(passthrough_key(asked, config(**settings)))

    def test_a_prefix_line_does_not_change_deepseeks_own_model_name(self) -> None:
        self.assert_resolved({ModelChoice(PRO): PRO, ModelChoice(FLASH): "x"}, models={"*": FLASH, "deepseek*": FLASH})
        self.assert_resolved({ModelChoice(FLASH): PRO}, models={PRO: FLASH})

    def test_a_huge_model_name_is_resolved_in_linear_time(self) -> None:
        started = time.thread_time()
        for name in ("-fast" * 100_000, " " * 500_000 + "x", "(" * 500_000, "x" + " " * 190 + "(high"):
            resolve(name, config(models=TABLE))
        self.assertLess(time.thread_time() - started, 1)

    def test_the_offered_models_begin_with_the_configured_one_without_duplicates(self) -> None:
        self.assertEqual(["mine", PRO, FLASH], offered_models(config()))
        settings = ProxyConfig(upstream_model=FLASH, models={"a": PRO, "b*": PRO})
        self.assertEqual([FLASH, PRO, "a"], offered_models(settings))


class TestPassthroughKey(unittest.TestCase):
    def test_the_most_exact_line_of_models_and_passthrough_wins(self) -> None:
        routes = {"gpt-*": ROUTE, "gpt-5.6-luna": ROUTE, "deepseek-*": ROUTE, "gpt-5*": ROUTE}
        models = {"gpt-5.6-sol": PRO, "gpt-4o*": FLASH, "g*": FLASH, "gpt-5.6-luna": FLASH}
        settings = config(models=models, passthrough=routes)
        routed = {"gpt-9": "gpt-*", "GPT-5.1": "gpt-5*", "gpt-5.6-luna": "gpt-5.6-luna", "deepseek-next": "deepseek-*"}
        others = ("gpt-5.6-sol", "gpt-5.6-sol-high-fast[1m]", "gpt-4o-mini", "gemini", PRO, "deepseek-v4-pro-high")
        for name in (*routed, *others, "mine", "", None, 7):
            self.assertEqual(routed.get(name), passthrough_key(name, settings), name)


class TestNamesOfOtherHosts(unittest.TestCase):
    """Another host has its own names, and not DeepSeek's."""

    TABLE: ClassVar = {
        "deepseek/deepseek-v4-flash:free": "deepseek/deepseek-v4-flash:free",
        "deepseek-ai/DeepSeek-V4.1-Flash": "deepseek-ai/DeepSeek-V4.1-Flash",
        "accounts/fireworks/models/deepseek-v4-pro": "accounts/fireworks/models/deepseek-v4-pro",
        "deepseek-v4-pro": "owner/mine",
        "gpt-5": "owner/mine",
        "short": "deepseek/deepseek-v4-pro:nitro",
        "vendor/alias:1.5": "deepseek-flash",
    }

    def config(self, **settings: Any) -> ProxyConfig:
        models = {"short": "deepseek/deepseek-v4-pro:nitro", "vendor/alias:1.5": "deepseek-flash"}
        return config(**{"upstream_model": "owner/mine", "models": models, "upstream_host": "openrouter", **settings})

    def test_a_name_with_a_slash_stays_and_deepseeks_own_become_the_configured_model(self) -> None:
        for requested, model in self.TABLE.items():
            self.assertEqual(ModelChoice(model), resolve(requested, self.config()), requested)

    def test_the_list_of_models_has_no_name_that_the_host_does_not_know(self) -> None:
        self.assertEqual(["owner/mine", "short", "vendor/alias:1.5"], offered_models(self.config()))

    def test_claude_names_become_the_configured_model(self) -> None:
        self.assertEqual("claude-opus-5", resolve_claude("claude-opus-5", self.config()))

    def test_a_model_that_sees_no_images_is_known_by_every_name(self) -> None:
        for name in ("deepseek-v4-pro", "deepseek/deepseek-v4-pro:free", "deepseek-ai/DeepSeek-V4-Pro"):
            self.assertFalse(can_see_images(name), name)
        self.assertTrue(can_see_images("deepseek/deepseek-v4-flash"))

    def test_only_flash_at_deepseek_is_known_to_take_later_system_messages(self) -> None:
        for model in ("deepseek-flash", "deepseek-v4-flash"):
            self.assertTrue(takes_later_system(model, DEEPSEEK))
            self.assertFalse(takes_later_system(model, UNKNOWN))
        for model in ("deepseek-v4-pro", "deepseek-v5-pro"):
            self.assertFalse(takes_later_system(model, DEEPSEEK))


class TestUpstreamTables(unittest.TestCase):
    """Names that tables [upstreams] list are known, and NAME/model is the model of one of them."""

    def config(self, **settings: Any) -> ProxyConfig:
        tables = {
            "main": {"base_url": "https://a"},
            "other": {"base_url": "https://b", "models": {"kimi-k3": "moonshot/k3", "glm-*": "z/glm-*", "v/x": "v/x"}},
        }
        models = {"quick": "other/deepseek-flash-nothink", "gpt-*": "main/deepseek-v4-pro", "k": "kimi-k3"}
        return config(**{"upstream_model": PRO, "upstreams": tables, "models": models, **settings})

    def test_names(self) -> None:
        for requested, expected in {
            "deepseek-flash": ModelChoice(FLASH),
            "deepseek-v4-pro-max": ModelChoice(PRO, "max"),
            "KIMI-K3": ModelChoice("kimi-k3"),
            "kimi-k3-high": ModelChoice("kimi-k3", "high"),
            "k:nothink": ModelChoice("kimi-k3", thinking=False),
            "glm-6-air": ModelChoice("glm-6-air"),
            "v/x": ModelChoice("v/x"),
            "other/deepseek-flash": ModelChoice("other/deepseek-flash"),
            "Other/DeepSeek-Flash-max": ModelChoice("other/deepseek-flash", "max"),
            "main/some/model:free": ModelChoice("main/some/model:free"),
            "quick": ModelChoice("other/deepseek-flash", thinking=False),
            "quick-high": ModelChoice("other/deepseek-flash", "high", thinking=False),
            "gpt-5.6": ModelChoice("main/deepseek-v4-pro"),
            "unheard-of": ModelChoice(PRO),
            "nobody/x": ModelChoice(PRO),
        }.items():
            self.assertEqual(expected, resolve(requested, self.config()), requested)

    def test_a_model_that_no_table_serves_becomes_the_configured_one(self) -> None:
        only = self.config(upstream_model="kimi-k3", upstreams={"a": {"base_url": "https://a", "models": ["kimi-k3"]}})
        for name in (PRO, FLASH, "gpt-4", "a/kimi-k3"):
            self.assertIn(resolve(name, only).model, ("kimi-k3", "a/kimi-k3", "main/deepseek-v4-pro"))
        self.assertEqual(["kimi-k3"], offered_models(config(upstream_model="kimi-k3", upstreams=only.upstreams)))
        self.assertEqual("claude-opus-5", resolve_claude("claude-opus-5", only))

    def test_the_list_of_models(self) -> None:
        self.assertEqual([PRO, FLASH, "kimi-k3", "v/x", "quick", "k"], offered_models(self.config()))
        self.assertEqual(PRO, resolve_claude("claude-opus-5", self.config()))

    def test_a_target_that_no_table_serves_is_refused_at_the_start(self) -> None:
        refuse_unknown(self.config(), "file")
        tables = {"a": {"base_url": "https://a", "models": ["kimi-k3"]}}
        for settings, expected in (
            ({"models": {}}, 'model = "deepseek-v4-pro" is served by no table [upstreams]; these serve kimi-k3'),
            ({"upstream_model": "kimi-k3", "models": {"x": "glm"}}, 'models.x = "glm" is served by no table'),
        ):
            with self.subTest(expected), self.assertRaises(StartupError) as caught:
                refuse_unknown(self.config(upstreams=tables, **settings), "file")
            self.assertIn(expected, str(caught.exception))
        refuse_unknown(self.config(upstreams=tables, upstream_model="kimi-k3", models={"x": "a/glm"}), "file")
