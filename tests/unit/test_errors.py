import unittest
from collections.abc import Mapping

from deepseek_cursor_proxy.errors import UpstreamFailed, UpstreamRefused

KEY = 'sk-"quoted\\0123456789'


def _words(error: Mapping[str, object]) -> tuple[object, object]:
    assert {"message", "type", "param", "code"} <= error.keys(), error
    return error["message"], error["type"]


class TestHiding(unittest.TestCase):
    def test_a_key_that_upstream_quotes_is_removed_from_message_and_body(self) -> None:
        refusal = UpstreamRefused(401, f"{KEY} is wrong", {"error": {"message": f"{KEY} is wrong", KEY: [KEY]}}, None)
        refusal.hide(KEY)
        self.assertEqual("*** is wrong", refusal.message)
        expected = {"message": "*** is wrong", "type": "upstream_error", "param": None, "code": "upstream_error"}
        self.assertEqual({"error": {**expected, "***": ["***"]}}, refusal.payload())
        failure = UpstreamFailed(f"DeepSeek broke off: {KEY}")
        failure.hide(KEY)
        self.assertEqual("DeepSeek broke off: ***", failure.payload()["error"]["message"])

    def test_every_upstream_error_gets_the_openai_error_shape(self) -> None:
        for error in (None, 7, "busy", ["x"], {}, {"code": 5}, {"message": 7, "type": []}, {"message": "", "type": ""}):
            with self.subTest(error=error):
                expected = UpstreamRefused(500, "Busy.", {"error": error, "id": "1"}, None).payload()
                self.assertEqual(("1", "Busy.", "upstream_error"), (expected["id"], *_words(expected["error"])))
        whole = {"error": {"message": "m", "type": "t", "param": "p", "code": None, "x": 1}}
        self.assertEqual(whole, UpstreamRefused(500, "Busy.", whole, None).payload())

    def test_an_upstream_error_without_the_key_stays_unchanged(self) -> None:
        body = {"error": {"message": "é\ud800", "code": 12345678, "param": None}}
        refusal = UpstreamRefused(400, "é", body, None)
        refusal.hide("12345678")
        self.assertEqual((body, "é"), (refusal.body, refusal.message))
