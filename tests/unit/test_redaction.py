import unittest

from deepseek_cursor_proxy.redaction import SecretFilter, hide_texts

KEY = "sk-sk-key-0123456789"


class SecretFilterTest(unittest.TestCase):
    def filtered(self, pieces: list[bytes]) -> bytes:
        secret_filter = SecretFilter(KEY)
        given = [secret_filter.feed(piece, is_last=False) for piece in pieces]
        return b"".join([*given, secret_filter.feed(b"", is_last=True)])

    def test_a_secret_is_removed_wherever_it_is_cut(self) -> None:
        key = KEY.encode()
        for text in (key, b"a " + key + b" b", key * 2, b"sk-" + key, b"sk-sk-" + key + b"sk-sk-", key[:-1] + key):
            expected = text.replace(key, b"***")
            self.assertEqual(expected, self.filtered([text]))
            self.assertEqual(expected, self.filtered([text[at : at + 1] for at in range(len(text))]))
            for cut in range(len(text)):
                self.assertEqual(expected, self.filtered([text[:cut], text[cut:]]))

    def test_other_bytes_stay_as_they_are(self) -> None:
        for text in (b"", b"sk-", KEY.encode()[:-1], b"data: {}\n\n", b"\xff\x00sk-sk-k"):
            for cut in range(len(text) + 1):
                self.assertEqual(text, self.filtered([text[:cut], text[cut:]]))

    def test_an_event_never_waits_for_the_next_one(self) -> None:
        secret_filter = SecretFilter(KEY)
        self.assertEqual(b"data: sk-sk-\n\n", secret_filter.feed(b"data: sk-sk-\n\n", is_last=False))


class HideTextsTest(unittest.TestCase):
    def test_texts_are_hidden_at_every_depth_and_nothing_else(self) -> None:
        value = {"a": "token", "b": [1, True, None, {"c": ("x", 1.5)}], "d": ""}
        self.assertEqual({"a": "…", "b": [1, True, None, {"c": ["…", 1.5]}], "d": "…"}, hide_texts(value))
