"""Keys by their digests: how they are written, what they show. What is refused is in test_config."""

import unittest

from deepseek_cursor_proxy.config.access_keys import AccessKey, access_key, is_credential, new_key

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

    def test_a_new_key_is_a_credential_and_not_guessable(self) -> None:
        key = new_key()
        self.assertTrue(is_credential(key))
        self.assertFalse(AccessKey.of(key).is_guessable)
