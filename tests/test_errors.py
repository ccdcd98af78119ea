import unittest

from deepseek_cursor_proxy.errors import UpstreamFailed, UpstreamRefused

KEY = 'sk-"quoted\\0123456789'


class TestHiding(unittest.TestCase):
    def test_the_key_upstream_quotes_is_in_nothing_that_is_told(self) -> None:
        refusal = UpstreamRefused(401, f"{KEY} is wrong", {"error": {"message": f"{KEY} is wrong", KEY: [KEY]}}, None)
        refusal.hide(KEY)
        self.assertEqual("*** is wrong", refusal.message)
        self.assertEqual({"error": {"message": "*** is wrong", "***": ["***"]}}, refusal.payload())
        failure = UpstreamFailed(f"DeepSeek broke off: {KEY}")
        failure.hide(KEY)
        self.assertEqual("DeepSeek broke off: ***", failure.payload()["error"]["message"])

    def test_what_does_not_quote_it_stays_as_it_is(self) -> None:
        body = {"error": {"message": "é\ud800", "code": 12345678, "param": None}}
        refusal = UpstreamRefused(400, "é", body, None)
        refusal.hide("12345678")
        self.assertEqual((body, "é"), (refusal.body, refusal.message))
