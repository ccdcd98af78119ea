import re
from datetime import UTC, datetime

from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.config.declaration import to_toml
from deepseek_cursor_proxy.config.named_keys import Limits, NamedKey, describe_changes, named_key
from deepseek_cursor_proxy.config.settings import ProxyConfig
from tests.support.configs import ConfigTestCase

KEY, OTHER = "sk-the-first-key-of-ann", "sk-the-second-key-of-ann"
ANN = f'[keys.ann]\nkey = "{KEY}"\n'
REFUSED = (
    ("[keys]\nann = 1", "keys.ann is not a table; write [keys.ann] above its settings"),
    (f'[keys]\nann = "{KEY}"', "keys.ann is not a table"),
    ("[keys.ann]\nusd_per_day = 1", "keys.ann has no key; `access-key --new ann` makes one"),
    ('[keys."a b"]\nkey = "sk-secret"', "[keys.a b] is not a name of letters, digits"),
    ("[keys.ann]\nkey = []", "keys.ann.key has 0 keys; give one, or an old and a new one"),
    ('[keys.ann]\nkey = ["a", "b", "c"]', "keys.ann.key has 3 keys"),
    ('[keys.ann]\nkey = "sk secret"', "keys.ann.key has a key with a space"),
    (ANN + "usd_per_dya = 1", 'unknown key keys.ann.usd_per_dya ({file}); did you mean "usd_per_day"?'),
    (ANN + "usd_per_day = 0", "keys.ann.usd_per_day = 0 is not an amount from 0.000001 to 1000000 US dollars"),
    (ANN + "usd_per_day = nan", "keys.ann.usd_per_day = nan is not an amount"),
    (ANN + 'usd_per_month = "5"', 'keys.ann.usd_per_month = "5" is not an amount'),
    (ANN + "requests_per_minute = 1.5", "keys.ann.requests_per_minute = 1.5 is not a whole number from 1"),
    (ANN + "tokens_per_minute = true", "keys.ann.tokens_per_minute = True is not a whole number"),
    (ANN + "concurrent = 0", "keys.ann.concurrent = 0 is not a whole number from 1"),
    (ANN + "warn_at = 80", "keys.ann.warn_at = 80 is not a share of a budget such as 0.8"),
    (ANN + "models = []", "keys.ann.models = [] is not a list of models"),
    (ANN + 'models = ["a*b"]', "is not a list of models"),
    (ANN + 'expires = "soon"', 'keys.ann.expires = "soon" is not a date such as 2027-03-31'),
    (ANN + "expires = 2027-03-31T18:00:00", "keys.ann.expires = "),
    (ANN + 'upstream_key_env = "sk-secret-key"', "keys.ann.upstream_key_env is not the name of an environment"),
    (ANN + 'note = "a\\nb"', "keys.ann.note is not one line"),
    (ANN + 'group = "lab"', 'keys.ann.group = "lab", and there is no [groups.lab]'),
    (ANN + f'[keys.ben]\nkey = "{KEY}"', "keys.ann and keys.ben have the same key; give each its own"),
    ('[groups.lab]\nkey = "sk-secret"', "unknown key groups.lab.key"),
    ("[groups.lab]\nshare_reasoning = 1", "groups.lab.share_reasoning = 1 is not true or false"),
)


class NamedKeysTest(ConfigTestCase):
    def write(self, **files: str) -> None:
        """Files of keys beside the configuration."""
        (self.home / "keys.d").mkdir(exist_ok=True)
        for name, content in files.items():
            (self.home / "keys.d" / f"{name}.toml").write_text(content, encoding="utf-8")

    def test_a_table_with_everything(self) -> None:
        text = (
            f'[keys.ann]\nkey = ["{KEY}", "{AccessKey.of(OTHER).line}"]\nmodels = ["deepseek-flash", "gpt-*"]\n'
            "requests_per_minute = 60\ntokens_per_minute = 200000\nusd_per_day = 5\nusd_per_month = 50.5\n"
            'warn_at = 0.8\nconcurrent = 2\nexpires = 2027-03-31\ngroup = "lab"\nupstream_key_env = "ANN_KEY"\n'
            'note = "laptop"\n[groups.lab]\nusd_per_month = 200\nshare_reasoning = true\n'
        )
        config = self.load(text).config
        ann, lab = config.keys["ann"], config.groups["lab"]
        self.assertEqual([AccessKey.of(KEY).digest, AccessKey.of(OTHER).digest], [key.digest for key in ann.keys])
        self.assertEqual(Limits(50.5, 5.0, 200_000, 60, 2), ann.limits)
        self.assertEqual((0.8, "lab", "ANN_KEY", "laptop"), (ann.warn_at, ann.group, ann.upstream_key_env, ann.note))
        self.assertEqual((Limits(usd_per_month=200.0), True), (lab.limits, lab.share_reasoning))
        self.assertEqual([key.digest for key in ann.keys], [key.digest for key in config.served_keys])

    def test_a_date_is_valid_to_its_end_in_utc(self) -> None:
        for text, moment in (
            ("2027-03-31", datetime(2027, 4, 1, tzinfo=UTC)),
            ('"2027-03-31"', datetime(2027, 4, 1, tzinfo=UTC)),
            ("2027-03-31T18:00:00+02:00", datetime(2027, 3, 31, 16, tzinfo=UTC)),
            ('"2027-03-31T18:00:00Z"', datetime(2027, 3, 31, 18, tzinfo=UTC)),
        ):
            self.assertEqual(moment.timestamp(), self.load(f"{ANN}expires = {text}").config.keys["ann"].expires, text)

    def test_mistakes_name_the_key_and_the_remedy_and_no_secret(self) -> None:
        self.assert_refused(REFUSED)

    def test_files_of_keys_are_read_beside_the_configuration(self) -> None:
        self.write(ben='[keys.ben]\nkey = "sk-of-ben"\ngroup = "lab"\n', lab="[groups.lab]\n")
        config = self.load(ANN).config
        self.assertEqual({"ann", "ben"}, config.keys.keys())
        self.assertEqual({"lab"}, config.groups.keys())
        for content, words in (
            (ANN, "keys.ann is in another file, too; remove it from one"),
            ("port = 1", '"port" is not for a file of keys; it has [keys.NAME] alone'),
            ("[keys.ben", "is not valid TOML"),
        ):
            self.write(extra=content)
            self.assertRegex(self.refusal(ANN), rf"{re.escape(words)}.*extra.toml|extra.toml.*{re.escape(words)}")

    def test_nothing_that_is_printed_has_a_key(self) -> None:
        config = self.load(ANN + "expires = 2027-03-31\n").config
        shown = to_toml(config.keys)
        self.assertNotIn(KEY, shown + repr(config.keys))
        self.assertIn('ann = {key = ["sha256:', shown)
        self.assertIn('expires = "2027-04-01 00:00 UTC"', shown)

    def test_a_model_is_allowed_by_its_name_or_a_beginning(self) -> None:
        key = named_key("keys.ann", {"key": KEY, "models": ["deepseek-flash", "GPT-*"]}, "")
        for model, is_allowed in (
            ("deepseek-flash", True), ("DeepSeek-Flash", True), ("deepseek-flash-2", False), ("gpt-5", True),
            ("deepseek-v4-pro", False),
        ):  # fmt: skip
            self.assertEqual(is_allowed, key.may_use(model), model)
        self.assertTrue(NamedKey("ann", ()).may_use("any"))

    def test_changes_are_said_by_name(self) -> None:
        def keys(text: str) -> ProxyConfig:
            return self.load(text).config

        before = keys(ANN + "[keys.ben]\nkey = 'sk-of-ben'\n")
        after = keys(ANN + "usd_per_day = 5\n[keys.cam]\nkey = 'sk-of-cam'\n")
        expected = ["keys.ann has another usd_per_day", "keys.ben was removed", "keys.cam was added"]
        self.assertEqual(expected, describe_changes(before.keys, after.keys))
        self.assertEqual(
            [], describe_changes(after.keys, keys(ANN + "usd_per_day = 5\n" + "[keys.cam]\nkey = 'sk-of-cam'\n").keys)
        )
