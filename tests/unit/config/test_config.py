import os
import tomllib
import unittest
from dataclasses import fields
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey, access_key
from deepseek_cursor_proxy.config.declaration import ENVIRONMENT_PREFIX, to_toml
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS, LoadedConfig, collect, template
from deepseek_cursor_proxy.config.settings import HOME
from deepseek_cursor_proxy.config.values import PassthroughRoute
from deepseek_cursor_proxy.errors import StartupError
from tests.support.configs import ConfigTestCase

BY_KEY = {each.key: each for each in SETTINGS}
BY_FIELD = {each.field: each for each in DECLARATIONS}

URLS = {"base_url": "https://x", "tunnel_url": "https://x", "store": "redis://x"}

# What outside code relies on.
CONTRACT: dict[str, Any] = {"host": "127.0.0.1", "port": 9000, "ngrok": False, "verbose": False, "cors": False}
CONTRACT |= {"upstream_base_url": "https://api.deepseek.com", "upstream_model": "deepseek-v4-pro", "trace_dir": None}
CONTRACT |= {"thinking": "enabled", "reasoning_effort": "high", "display_reasoning": "auto"}
CONTRACT |= {"collapsible_reasoning": True, "missing_reasoning_strategy": "recover"}
CONTRACT |= {"request_timeout": 300.0, "max_request_body_bytes": 48 * 1024 * 1024}
CONTRACT |= {"reasoning_content_path": HOME / "reasoning_content.sqlite3", "reasoning_cache_max_rows": 100_000}
CONTRACT |= {"reasoning_cache_max_age_seconds": 30 * 24 * 3600}
# Its flags, without the two that are no settings.
FLAGS = """
--host --port --base-url --model --thinking --reasoning-effort --reasoning-content-path --ngrok --verbose --trace-dir
--display-reasoning --collapsible-reasoning --cors --request-timeout --max-request-body-bytes
--reasoning-cache-max-age-seconds --reasoning-cache-max-rows --missing-reasoning-strategy
"""


class DeclarationTest(ConfigTestCase):
    def test_every_setting_of_the_contract_has_its_default(self) -> None:
        config = ProxyConfig()
        for name, value in CONTRACT.items():
            with self.subTest(name):
                self.assertEqual(getattr(config, name), value)
                self.assertIs(type(getattr(config, name)), type(value))
        self.assertLessEqual(set(FLAGS.split()), {each.flag for each in SETTINGS})

    def test_a_constant_is_no_setting(self) -> None:
        constants = [each.name for each in fields(ProxyConfig) if "constant" in each.metadata]
        self.assertEqual({each.name for each in fields(ProxyConfig)} - set(constants), {*BY_FIELD})
        for name in constants:
            self.assertRegex(self.refusal(f"{name} = 1"), rf'^config: unknown key "{name}"')

    def test_every_setting_has_a_flag_a_key_and_help(self) -> None:
        for each in SETTINGS:
            with self.subTest(each.key):
                self.assertRegex(each.key, r"^[a-z]+(_[a-z]+)*$")
                self.assertEqual(each.flag, "--" + each.key.replace("_", "-"))
                self.assertRegex(each.help, r"^[ -~]{10,110}$")

    def test_every_number_has_a_lower_and_an_upper_limit(self) -> None:
        """An endless timeout is accepted here only to overflow a timer at the first request."""
        for each in SETTINGS:
            with self.subTest(each.key):
                self.assertEqual(each.kind in (int, float), each.at_least is not None and each.at_most is not None)


class SwitchTest(ConfigTestCase):
    def test_a_switch_accepts_true_and_false_from_every_source(self) -> None:
        variable = "DEEPSEEK_CURSOR_PROXY_DISPLAY_REASONING"
        for word, expected in (("true", "on"), ("false", "off")):
            for config in (
                self.load(f"display_reasoning = {word}").config, self.load(f'display_reasoning = "{word}"').config,
                self.load("", {variable: word}).config, self.load("", {variable: word.upper()}).config,
                self.load("", None, display_reasoning=word == "true").config,
                ProxyConfig(display_reasoning=word == "true"),
            ):  # fmt: skip
                self.assertEqual(expected, config.display_reasoning)
        for word in ("auto", "on", "off"):
            self.assertEqual(word, self.load(f'display_reasoning = "{word}"').config.display_reasoning)
            self.assertEqual(word, self.load("", {variable: word}).config.display_reasoning)
            self.assertEqual(word, ProxyConfig(display_reasoning=word).display_reasoning)
        self.assertIn('"maybe" is not one of auto, on, off', self.refusal('display_reasoning = "maybe"'))
        self.assertIn("is not one of auto, on, off", self.refusal("display_reasoning = 2"))


class PrecedenceTest(ConfigTestCase):
    def test_without_a_file_or_a_variable_with_our_prefix_all_settings_have_their_defaults(self) -> None:
        loaded = self.load()
        self.assertEqual(vars(loaded.config), vars(ProxyConfig()))
        self.assertEqual(loaded.origins, {each.field: "default" for each in DECLARATIONS})
        self.assertEqual(vars(LoadedConfig.load(self.home / "absent.toml", {}, {}).config), vars(ProxyConfig()))
        self.assertEqual(vars(self.load("", {"PORT": "1", "DEEPSEEK_API_KEY": "x"}).config), vars(ProxyConfig()))

    def test_flags_win_over_environment_over_file_over_defaults(self) -> None:
        file = 'port = 1\nhost = "file"\nmodel = "file"'
        environment = {"DEEPSEEK_CURSOR_PROXY_PORT": "2", "DEEPSEEK_CURSOR_PROXY_HOST": "environment"}
        loaded = self.load(file, environment, port="3")
        config = loaded.config
        self.assertEqual((config.port, config.host, config.upstream_model), (3, "environment", "file"))
        origins = ["flag --port", "environment DEEPSEEK_CURSOR_PROXY_HOST", str(self.file), "default"]
        self.assertEqual([loaded.origins[each] for each in ("port", "host", "upstream_model", "thinking")], origins)

    def test_every_setting_can_come_from_every_source(self) -> None:
        for each in SETTINGS:
            if each.kind is tuple:
                continue  # see ListTest
            kinds = {bool: not each.default, int: 7, float: 7.5, str: "x", Path: self.home / "x", AccessKey: KEY}
            value: Any = kinds[each.kind]
            value = each.choices[-1] if each.choices else URLS.get(each.key, value)
            written = to_toml(value)
            for loaded in (
                self.load(f"{each.key} = {written}"),
                self.load("", {ENVIRONMENT_PREFIX + each.key.upper(): str(value)}),
                self.load("", None, **{each.key: value if each.kind is bool else str(value)}),
            ):
                with self.subTest(each.key, origin=loaded.origins[each.field]):
                    expected = AccessKey.of(KEY) if each.kind is AccessKey else value
                    self.assertEqual(getattr(loaded.config, each.field), expected)
                    self.assertNotEqual(loaded.origins[each.field], "default")

    def test_the_password_of_an_engine_is_never_shown(self) -> None:
        loaded = self.load('store = "redis://ann:hunter2@10.0.0.1:6379/0"')
        self.assertEqual('"redis://ann:***@10.0.0.1:6379/0"', loaded.shown_value(BY_KEY["store"]))
        self.assertEqual("redis://ann:hunter2@10.0.0.1:6379/0", loaded.config.store)
        self.assertTrue(BY_KEY["store"].is_secret)
        self.assertNotIn("hunter2", self.refusal('store = "postgres://ann:hunter2@10.0.0.1/"'))

    def test_the_variable_of_the_secret_is_no_setting(self) -> None:
        self.assertEqual(vars(ProxyConfig()), vars(self.load("", {"DEEPSEEK_CURSOR_PROXY_SECRET": "0" * 64}).config))

    def test_a_bool_is_parsed_from_every_usual_word(self) -> None:
        for word in ("true", "True", "YES", "on", "1", " on "):
            self.assertTrue(self.load("", {"DEEPSEEK_CURSOR_PROXY_CORS": word}).config.cors, word)
        for word in ("false", "False", "NO", "off", "0"):
            self.assertFalse(self.load("", {"DEEPSEEK_CURSOR_PROXY_NGROK": word}).config.ngrok, word)

    def test_a_base_url_loses_its_last_slash(self) -> None:
        for url in ("https://x.example/v1/", " https://x.example/v1 ", "https://x.example/v1//"):
            self.assertEqual(self.load("", None, base_url=url).config.upstream_base_url, "https://x.example/v1")

    def test_a_configuration_file_with_a_byte_order_mark_is_read(self) -> None:
        self.assertEqual(self.load(b"\xef\xbb\xbfport = 1\r\n").config.port, 1)


# Key, what is allowed, values as TOML writes them.
REFUSED = (
    ("port", "is not a whole number", '"abc"', '""', "true", "1.0", '"1.5"', "nan", "[1]", "{}", "1979-05-27"),
    ("port", "is not a whole number", '"a\\nb\\u001b[2J"'),
    ("port", "is less than 0", "-1"),
    ("port", "is more than 65535", "65536", "0x" + "f" * 50),
    ("reasoning_cache_max_rows", "is less than 1", "0"),
    ("reasoning_cache_max_rows", "is more than 1000000000000", "10_000_000_000_000"),
    ("request_timeout", "is not a number", '"soon"', "nan", '"nan"', "true"),
    ("request_timeout", "is more than 86400", "inf", "1e300"),
    ("request_timeout", "is less than 0.1", "-inf", "0"),
    ("shutdown_grace", "is less than 0", "-0.1"),
    ("cors", "is not true or false", '"maybe"', "2", "[]"),
    ("thinking", "is not one of enabled, disabled", '"sometimes"', "true"),
    ("missing_reasoning_strategy", "is not one of recover, placeholder, reject", '""'),
    ("host", "is not a line of text", "1", '" "', '"a\\u0000b"'),
    ("trace_dir", "is not a path", "1"),
    ("reasoning_content_path", "is not a path", '""', '"a\\u0000b"'),
)
# How some of them are shown.
SHOWN = {"true": "True", '"a\\nb\\u001b[2J"': '"a\\nb\\x1b[2J"', '"a\\u0000b"': '"a\\x00b"', "1e300": "1e+300"}
SHOWN |= {"10_000_000_000_000": "10000000000000", "0x" + "f" * 50: str(16**50 - 1)}
BAD_URLS = """
api.deepseek.com ftp://api.deepseek.com https:// https:///v1 https://:443 https://x?key=1 https://x#y
https://bücher.example https://me:secret@x https://x:99999 https://x:0 https://x:port http://[::1
"""


class RefusalTest(ConfigTestCase):
    def test_a_bad_value_is_one_line_with_key_value_allowed_values_and_origin(self) -> None:
        for key, allowed, *values in REFUSED:
            for written in values:
                with self.subTest(key, value=written[:40]):
                    value = SHOWN.get(written, written)
                    message = f"config: {key} = {value} {allowed} ({self.file})"
                    self.assertEqual(self.refusal(f"{key} = {written}"), message)

    def test_a_bad_base_url_is_refused_with_an_example(self) -> None:
        for url in (*BAD_URLS.split(), "https://x y"):
            with self.subTest(url):
                message = self.refusal("", None, base_url=url)
                self.assertIn(f'base_url = "{url}" is not an http(s) address such as https://api.deepseek.com', message)

    def test_a_base_url_that_would_send_the_key_in_clear_is_refused(self) -> None:
        for host in ("api.deepseek.com", "10.0.0.1:8000/v1", "127.0.0.999", "localhost.evil"):
            with self.subTest(url := f"http://{host}"):
                message = self.refusal(f'base_url = "{url}"')
                self.assertIn(f'base_url = "{url}" would send your key in clear over the network', message)
                self.assertIn(f"allow_plain_http_upstream = true ({self.file})", message)
                allowed = self.load(f'base_url = "{url}"\nallow_plain_http_upstream = true')
                self.assertEqual(url, allowed.config.upstream_base_url)
        for url in ("http://localhost:1", "http://127.0.0.1:1/v1", "http://127.9.9.9", "http://[::1]:1"):
            self.assertEqual(url, self.load(f'base_url = "{url}"').config.upstream_base_url)

    def test_a_bad_value_names_the_variable_or_flag_it_comes_from(self) -> None:
        variable, flag = {"DEEPSEEK_CURSOR_PROXY_PORT": "abc"}, {"request_timeout": "abc"}
        message = 'config: port = "abc" is not a whole number (environment DEEPSEEK_CURSOR_PROXY_PORT)'
        self.assertEqual(self.refusal("", variable), message)
        message = 'config: request_timeout = "abc" is not a number (flag --request-timeout)'
        self.assertEqual(self.refusal("", None, **flag), message)

    @unittest.skipIf(os.name == "nt", "Windows invents a home for everybody")
    def test_a_path_in_a_home_that_does_not_exist_is_refused(self) -> None:
        self.assertIn('trace_dir = "~no-such-user/x" is not a path', self.refusal('trace_dir = "~no-such-user/x"'))
        with self.assertRaisesRegex(StartupError, "home directory that does not exist; write the whole path"):
            LoadedConfig.load(Path("~no-such-user/config.toml"), {}, {})

    def test_an_unknown_key_names_its_origin_and_the_nearest_key_if_there_is_one(self) -> None:
        for key, near in (("prot", "port"), ("base_ulr", "base_url"), ("thinkin", "thinking")):
            with self.subTest(key):
                message = self.refusal(f"{key} = 1")
                self.assertEqual(message, f'config: unknown key "{key}" ({self.file}); did you mean "{near}"?')

        for key, shown in (("xyzzy", "xyzzy"), ('"a\\nb"', "a\\nb")):
            self.assertEqual(self.refusal(f"{key} = 1"), f'config: unknown key "{shown}" ({self.file})')
        message = self.refusal("", {"DEEPSEEK_CURSOR_PROXY_PROT": "1"})
        self.assertIn('unknown key "prot" (environment DEEPSEEK_CURSOR_PROXY_PROT); did you mean "port"?', message)

    def test_a_file_that_is_not_toml_is_refused_with_line_and_column(self) -> None:
        message = self.refusal("port = 1\nhost = \n")
        self.assertTrue(message.startswith(f"config: {self.file} is not valid TOML: "), message)
        self.assertIn("line 2", message)

    def test_a_file_that_exceeds_pythons_limits_is_refused_as_invalid_toml(self) -> None:
        for text in ("port = " + "[" * 100_000, "port = " + "9" * 10_000, "port = 1\nport = 2", "[port", "\x00"):
            with self.subTest(text[:20]):
                # PyPy reads a number of any length.
                self.assertRegex(self.refusal(text), "is not valid TOML|port = … is more than 65535")

    def test_a_configuration_file_that_cannot_be_read_or_is_not_utf_8_is_refused_with_the_remedy(self) -> None:
        remedy = "fix it or pass another file with --config"
        message = self.refusal("host = 'bücher'".encode("latin-1"))
        self.assertEqual(message, f"config: cannot read {self.file}: it is not UTF-8; {remedy}")
        with self.assertRaisesRegex(StartupError, rf"^config: cannot read .+: .+; {remedy}$"):
            LoadedConfig.load(self.home, {}, {})


class CollectTest(ConfigTestCase):
    def test_every_bad_value_is_collected_and_the_good_ones_are_used(self) -> None:
        self.file.write_text('port = "x"\nmodel = "m"\nunknown = 1\n')
        environment = {f"{ENVIRONMENT_PREFIX}REASONING_CACHE_MAX_ROWS": "0", f"{ENVIRONMENT_PREFIX}HOST": "::1"}
        found = collect(self.file, environment, {"cors": "maybe"})
        self.assertEqual({"upstream_model": "m", "host": "::1"}, found.values)
        keys = [_key_in(str(fault)) for fault in found.faults]
        self.assertEqual(["port", "unknown", "reasoning_cache_max_rows", "cors"], keys)
        self.assertEqual("default", found.origins["port"])


def _key_in(fault: str) -> str:
    return fault.removeprefix("config: ").removeprefix('unknown key "').split()[0].rstrip('"')


class ListTest(ConfigTestCase):
    def test_a_list_can_come_from_every_source(self) -> None:
        variable = f"{ENVIRONMENT_PREFIX}ACCESS_KEYS"
        for loaded in (
            self.load(f'access_keys = ["{KEY}", "{AccessKey.of(OTHER).line.upper().replace("SHA", "sha")}"]'),
            self.load(f'access_keys = "{KEY},{OTHER}"'),
            self.load("", {variable: f" {KEY} , {OTHER}"}),
            self.load("", None, access_keys=f"{KEY},{AccessKey.of(OTHER).line}"),
        ):
            with self.subTest(origin=loaded.origins["access_keys"]):
                found = [key.digest for key in loaded.config.access_keys]
                self.assertEqual(found, [AccessKey.of(KEY).digest, AccessKey.of(OTHER).digest])
        self.assertEqual(self.load("access_keys = []", {}).config.access_keys, ())

    def test_a_bad_list_entry_is_one_line_that_does_not_repeat_it(self) -> None:
        visible = "has a key with a space or a character that is no visible ASCII, or a very long one"
        keys = (f"{KEY} {OTHER}", f" {KEY}", f"{KEY}\\u0007", f"{KEY}é", KEY * 200)
        digests = (f"sha256:{KEY}", f"SHA256:{'0' * 63}")
        for why, *values in (
            ("has an empty entry", '[""]', '""', f'"{KEY},"', '["  "]'),
            (visible, *(f'["{key}"]' for key in keys)),
            ("has a digest without 64 hexadecimal digits", *(f'["{digest}"]' for digest in digests)),
            ("has an entry that is not a text", f'[["{KEY}"]]', "[7]"),
            ("is not a list such as", f'{{a = "{KEY}"}}', "true"),
        ):
            for written in values:
                with self.subTest(written[:60]):
                    message = self.refusal(f"access_keys = {written}")
                    self.assertIn(f"config: access_keys {why}", message)
                    self.assertIn(str(self.file), message)
                    self.assertNotIn(KEY[:12], message)

    def test_a_single_key_is_a_digest_as_well_and_empty_means_none(self) -> None:
        for written in (KEY, AccessKey.of(KEY).line):
            config = self.load(f'admin_key = "{written}"').config
            assert config.admin_key is not None
            self.assertEqual(AccessKey.of(KEY).digest, config.admin_key.digest)
            self.assertNotIn(KEY, repr(config) + to_toml(config.admin_key))
        self.assertIsNone(self.load('admin_key = ""').config.admin_key)
        self.assertEqual(AccessKey.of(KEY), ProxyConfig(metrics_key=KEY).metrics_key)  # type: ignore[arg-type]
        for bad in (f'"{KEY} {OTHER}"', '" "', f'["{KEY}"]', '"sha256:00"'):
            with self.subTest(bad):
                message = self.refusal(f"admin_key = {bad}")
                self.assertIn("config: admin_key has ", message)
                self.assertNotIn(KEY[:12], message)


KEY, OTHER = "sk-the-first-of-two-keys", "sk-the-second-of-two-keys"


# text of the file, part of the error
PART, NAME, HTTPS = "[passthrough.a]\n", "is not a model's name", "is not an https address such as"
REFUSED_TABLES = (
    ('models = "x"', 'models = "x" is not a table; write [models] into the configuration file'),
    ("models = []", "models = [] is not a table; write [models] into the configuration file"),
    ("[models]\na = 1", f"models.a = 1 {NAME} such as deepseek-v4-pro"),
    ('[models]\na = ""', f'models.a = "" {NAME} such as deepseek-v4-pro'),
    ('[models]\na = "b*"', f'models.a = "b*" {NAME} such as deepseek-v4-pro'),
    ('[models]\n"g.p" = "\\u0000"', f'models."g.p" = "\\x00" {NAME} such as deepseek-v4-pro'),
    *(
        (f'[models]\n"{key}" = "b"', f'"{key}" in [models] {NAME}, or the beginning of one with * behind it')
        for key in ("", "a*b", " a")
    ),
    ('[models]\nport = "1"', "port is below [models]; settings belong above it"),
    (
        "[host_options]\nmessages = 1",
        'host_options.messages = "…" is not an option; the proxy writes model, messages, tools',
    ),
    (
        "[host_options]\nx = 1979-05-27",
        'host_options.x = "…" is not a text, number, true, false, list or table of these',
    ),
    (
        "[host_options]\nx = {y = inf}",
        'host_options.x = "…" is not a text, number, true, false, list or table of these',
    ),
    ("prices = 1", "prices = 1 is not a table; write [prices] into the configuration file"),
    ("[prices]\na = 1", "prices.a = 1 is not a table with miss and output, each the price of a million tokens"),
    ("[prices.a]", "prices.a = {} is not a table with miss and output"),
    ("[prices.a]\noutputs = 1", 'unknown key prices.a.outputs ({file}); did you mean "output"?'),
    ("[prices.a]\nmiss = -1", "prices.a.miss = -1 is not a price from 0 to 100000"),
    ("[prices.a]\nmiss = true", "prices.a.miss = True is not a price"),
    ("[prices.a]\nmiss = nan", "prices.a.miss = nan is not a price"),
    ('[prices.a]\nmiss = "1"', 'prices.a.miss = "1" is not a price'),
    ('[prices]\nholidays = ["soon"]', "prices.holidays = ['soon'] has an entry that is not a date such as 2027-02-09"),
    ("[prices]\nholidays = 7", "prices.holidays is not a list"),
    ("passthrough = 1", "passthrough = 1 is not a table; write [passthrough] into the configuration file"),
    ('[passthrough]\na = "b"', 'passthrough.a = "b" is not a table with base_url and key_env'),
    ("[passthrough.a]", "passthrough.a has no base_url"),
    (PART + 'base_url = "https://x"', "passthrough.a has no key_env"),
    (PART + "keyenv = 1", 'unknown key passthrough.a.keyenv ({file}); did you mean "key_env"?'),
    (PART + 'key_env = "K"\nbase_url = 1', f"passthrough.a.base_url = 1 {HTTPS}"),
    ('[passthrough."a*"]\nkey_env = "K"\nbase_url = "http://x"', f'passthrough."a*".base_url = "http://x" {HTTPS}'),
    (
        PART + 'key_env = "sk-secret-key"\nbase_url = "https://x"',
        "passthrough.a.key_env is not the name of an environment variable such as OPENAI_API_KEY",
    ),
)
OPENAI = PassthroughRoute("https://api.openai.com/v1", "OPENAI_API_KEY")


class TablesTest(ConfigTestCase):
    def test_tables_come_from_the_file(self) -> None:
        loaded = self.load(
            '[models]\n"gpt-5.6-sol" = "deepseek-v4-pro"\n"*" = "deepseek-flash"\n'
            '[passthrough."gpt-*"]\nbase_url = "https://api.openai.com/v1/"\nkey_env = "OPENAI_API_KEY"\n'
            '[host_options]\nprovider = {only = ["deepseek"], x = 1.5}\n'
        )
        self.assertEqual(loaded.config.host_options, {"provider": {"only": ["deepseek"], "x": 1.5}})
        self.assertEqual(loaded.config.models, {"gpt-5.6-sol": "deepseek-v4-pro", "*": "deepseek-flash"})
        self.assertEqual(loaded.config.passthrough, {"gpt-*": OPENAI})
        self.assertEqual(loaded.origins["models"], str(self.file))

    def test_prices_are_numbers_and_holidays_are_dates(self) -> None:
        text = '[prices]\nholidays = ["2027-02-09", 2027-02-10]\n[prices."a/b*"]\nmiss = 1\noutput = 2.5\npeak_hit = 0'
        prices = self.load(text).config.prices
        self.assertEqual(("2027-02-09", "2027-02-10"), prices["holidays"])
        self.assertEqual({"miss": 1.0, "output": 2.5, "peak_hit": 0.0}, prices["a/b*"])
        shown = f"prices = {to_toml(prices)}"
        self.assertEqual(prices, self.load(shown).config.prices)

    def test_a_bad_table_is_refused_in_one_line(self) -> None:
        self.assert_refused(REFUSED_TABLES)

    def test_a_passthrough_route_may_use_plain_http_on_this_machine_only(self) -> None:
        for host in ("127.0.0.1:8080", "localhost", "127.1.2.3", "[::1]:1"):
            text = f'[passthrough.a]\nkey_env = "K"\nbase_url = "http://{host}"'
            self.assertEqual(self.load(text).config.passthrough["a"].base_url, f"http://{host}")
        for host in ("127.evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.example"):
            self.refusal(f'[passthrough.a]\nkey_env = "K"\nbase_url = "http://{host}"')

    def test_a_table_in_the_environment_is_refused_with_a_hint_to_the_file(self) -> None:
        message = self.refusal("", {"DEEPSEEK_CURSOR_PROXY_MODELS": "a=b"})
        self.assertIn("write [models] into the configuration file (environment DEEPSEEK", message)


class TextsTest(ConfigTestCase):
    def test_the_template_changes_no_setting_and_uncommented_equals_the_defaults(self) -> None:
        self.assertEqual(vars(self.load(template()).config), vars(ProxyConfig()))
        lines = [line.removeprefix("# ") for line in template().splitlines() if " = " in line]
        self.assertEqual(list(tomllib.loads("\n".join(lines))), [each.key for each in SETTINGS if each.is_common])
        self.assertEqual(vars(self.load("\n".join(lines)).config), vars(ProxyConfig()))

    def test_the_template_has_the_help_of_the_ten_common_settings(self) -> None:
        lines = template().splitlines()
        self.assertTrue(all(line.startswith("#") or not line for line in lines))
        common = [each for each in SETTINGS if each.is_common]
        self.assertEqual(10, len(common))
        for each in common:
            with self.subTest(each.key):
                above = lines[lines.index(f"# {each.key} = {to_toml(each.default)}") - 1]
                self.assertTrue(above.startswith(f"# {each.help}"), above)
                self.assertTrue(all(choice in above for choice in each.choices))


class TunnelSettingsTest(ConfigTestCase):
    def test_the_tunnel_to_open_follows_from_tunnel_and_ngrok(self) -> None:
        for tunnel, ngrok, program in (
            (None, False, None), (None, True, "ngrok"), ("off", True, None), ("off", False, None), ("on", True, "on"),
            (True, False, "on"), (False, True, None), ("cloudflared", True, "cloudflared"),
        ):  # fmt: skip
            with self.subTest(tunnel=tunnel, ngrok=ngrok):
                config = ProxyConfig(tunnel=tunnel, ngrok=ngrok)
                self.assertEqual(program, config.tunnel_program)
                self.assertIs(program is not None, config.is_exposed)

    def test_every_source_can_name_a_tunnel(self) -> None:
        for loaded, program in (
            (self.load('tunnel = "cloudflared"'), "cloudflared"), (self.load("tunnel = true"), "on"),
            (self.load('tunnel = ""\nngrok = true'), "ngrok"),
            (self.load(environment={"DEEPSEEK_CURSOR_PROXY_TUNNEL": "yes"}), "on"),
            (self.load('tunnel = "ngrok"', tunnel="off"), None), (self.load("ngrok = true", tunnel="off"), None),
            (self.load('tunnel = "ngrok"', tunnel="cloudflared"), "cloudflared"),
        ):  # fmt: skip
            self.assertEqual(program, loaded.config.tunnel_program)

    def test_a_tunnel_that_is_none_is_refused_with_those_there_are(self) -> None:
        for value in ("ngork", "NGROK", "cloudflared:x", "ssh"):
            self.assertIn("is not one of on, off, ngrok, cloudflared", self.refusal(tunnel=value))

    def test_the_address_of_a_tunnel_is_https_and_has_no_path(self) -> None:
        for value, url in (
            ("https://proxy.example.com", "https://proxy.example.com"),
            ("https://proxy.example.com/", "https://proxy.example.com"),
            ("https://proxy.example.com/v1", "https://proxy.example.com"),
            ("https://proxy.example.com/v1/", "https://proxy.example.com"),
            ("proxy.example.com", "https://proxy.example.com"),
            ("box.example.com:8443", "https://box.example.com:8443"),
            # A tunnel that ends on this machine, as in tests.
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ):
            self.assertEqual(url, self.load(tunnel_url=value).config.tunnel_url)
        self.assertIsNone(self.load('tunnel_url = ""').config.tunnel_url)

    def test_an_address_that_cannot_be_one_is_refused(self) -> None:
        for value in ("http://proxy.example.com", "https://", "https://a/b", "https://u@a", "ftp://a", "a?x", "a b"):
            self.assertRegex(self.refusal(tunnel_url=value), "tunnel_url .* is not an https address")


OWNER = "sk-the-key-of-the-owner"


class TestAccessKeys(unittest.TestCase):
    def test_a_key_and_its_digest_are_the_same_access_key(self) -> None:
        key = AccessKey.of(OWNER)
        for written in (key.line, key.line.upper().replace("SHA", "sha"), key.line.upper()):
            self.assertEqual(key, access_key("access_keys", written, "here"))
        self.assertEqual(key, access_key("access_keys", OWNER, "here"))
        self.assertIs(key, access_key("access_keys", key, "here"))

    def test_no_text_of_an_access_key_contains_the_key(self) -> None:
        key = AccessKey.of(OWNER)
        for text in (str(key), repr(key), f"{key}"):
            self.assertNotIn(OWNER, text)
            self.assertNotIn(key.digest.hex(), text)

    def test_a_short_key_is_guessable(self) -> None:
        for length, expected in ((1, True), (15, True), (16, False), (4096, False)):
            self.assertEqual(expected, AccessKey.of("k" * length).is_guessable)
