import json
import time
import unittest
from unittest import mock

from deepseek_cursor_proxy import json_codec
from deepseek_cursor_proxy.errors import BadRequest
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.json_codec import close_json, decode_json_object, decode_upstream_json, encode_json
from deepseek_cursor_proxy.redaction import readable_json, redact_keys, safe_text


class TestEncoding(unittest.TestCase):
    def test_the_encoder_that_is_kept_writes_what_the_standard_library_does(self) -> None:
        numbers = [1, -0.5, 1e300, True, None]
        texts = {"é": '\\"\n\x7f\u2028\U0001f600', 1: {}, None: [[]], 2.5: ()}
        for value in (numbers, texts, "text", 7):
            expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            self.assertEqual(expected.encode(), encode_json(value))

    def test_a_lone_surrogate_is_escaped_and_survives(self) -> None:
        self.assertEqual({"a": "\ud800é"}, json.loads(encode_json({"a": "\ud800é"})))

    def test_nan_and_infinity_are_not_encoded(self) -> None:
        for number in (float("nan"), float("inf")):
            with self.assertRaises(ValueError):
                encode_json({"a": number})

    def test_a_stream_reply_asks_proxies_not_to_buffer(self) -> None:
        self.assertIn(("X-Accel-Buffering", "no"), HttpReply.events(mock.Mock()).headers)


class TestDecoding(unittest.TestCase):
    def test_a_body_that_is_no_json_object_is_a_bad_request(self) -> None:
        for name, body in {
            "empty": b"", "blank": b" \r\n\t", "broken": b'{"a":', "text": b"hello", "list": b"[1]", "number": b"7",
            "null": b"null", "NaN": b'{"a":NaN}', "Infinity": b'{"a":-Infinity}', "overflow": b'{"a":1e999}',
            "5000 digits": b'{"a":' + b"9" * 5000 + b"}", "latin-1": b'{"a":"\xe9"}',
            "utf-16": '{"a":1}'.encode("utf-16"), "trailing": b"{} {}", "single quotes": b"{'a':1}",
            "control": b'{"a":"\x01"}', "deep list": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "unclosed deep": b"[" * 100_000,
        }.items():  # fmt: skip
            with self.subTest(name), self.assertRaises(BadRequest) as caught:
                decode_json_object(body)
            self.assertTrue(caught.exception.message)
            self.assertNotIn("sys.", caught.exception.message, "Python's advice to programmers")

    def test_a_body_with_too_many_values_is_refused_before_it_is_decoded(self) -> None:
        """Forty megabytes of them took a gigabyte, and ten seconds in which no other request was served."""
        count = json_codec.MAX_JSON_VALUES + 1
        for name, values in {
            "lists": b"[" + b"[]," * count + b"0]", "numbers": b"[" + b"1," * count + b"0]",
            "strings": b"[" + b'"",' * 2 * count + b"0]", "levels": b"[" * count,
            "fields": b"{" + b'"a":0,' * count + b'"a":0}', "quotes in strings": b"[" + rb'",[\"{",' * count + b"0]",
        }.items():  # fmt: skip
            with self.subTest(name), self.assertRaises(BadRequest) as caught:
                decode_json_object(b'{"a":' + values + b"}")
            self.assertEqual("too_many_values", caught.exception.code)

    def test_commas_and_brackets_in_strings_are_no_values(self) -> None:
        for text in (",", "[{", '{"a":[1,2]},\n', '\\",'):
            with self.subTest(text):
                body = {"a": text * json_codec.MAX_JSON_VALUES}
                self.assertEqual(body, decode_json_object(encode_json(body)))

    def test_an_unterminated_string_is_scanned_once(self) -> None:
        """Takes hours, not a moment, when every quote in it is tried as a beginning."""
        with self.assertRaises(BadRequest) as caught:
            decode_json_object(b'{"a":"' + rb",\"" * json_codec.MAX_JSON_VALUES)
        self.assertEqual("invalid_json", caught.exception.code)

    def test_the_limit_of_json_depth_is_the_same_on_every_python(self) -> None:
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            for depth, is_read in ((json_codec.MAX_JSON_DEPTH, True), (json_codec.MAX_JSON_DEPTH + 1, False)):
                inner = depth - 1
                body = b'{"a":' + opening * inner + b"1" + closing * inner + b"}"
                with self.subTest(opening, depth=depth):
                    if is_read:
                        for decode in (decode_json_object, decode_upstream_json):
                            self.assertEqual(body, encode_json(decode(body)))
                    else:
                        with self.assertRaisesRegex(BadRequest, "nested too deeply: at most 200 levels"):
                            decode_json_object(body)
                        with self.assertRaisesRegex(ValueError, "nested too deeply"):
                            decode_upstream_json(body)

    def test_brackets_in_strings_and_side_by_side_are_no_depth(self) -> None:
        body = encode_json({"text": "[{" * 5000, "wide": [[{}] for _ in range(5000)]})
        self.assertEqual(body, encode_json(decode_json_object(body)))

    def test_unusual_json_is_decoded(self) -> None:
        for name, body, value in (
            ("a byte order mark", b'\xef\xbb\xbf{"a":1}', 1),
            ("equal keys, of which the last wins", b'{"a":1,"a":2}', 2),
            ("a lone surrogate", b'{"a":"\\ud800"}', "\ud800"),
        ):
            self.assertEqual({"a": value}, decode_json_object(body), name)


class TestUpstreamDecoding(unittest.TestCase):
    def test_nan_and_infinity_from_upstream_become_null(self) -> None:
        read = decode_upstream_json('{"a":NaN,"b":-Infinity,"c":1e999,"d":1.5}')
        self.assertEqual({"a": None, "b": None, "c": None, "d": 1.5}, read)

    def test_upstream_json_that_is_too_deep_to_encode_is_refused(self) -> None:
        for text in ("[" * 300 + "]" * 300, '{"a":' * 200 + "[]" + "}" * 200, '{"b":[{}],"a":' * 201 + "1" + "}" * 201):
            with self.subTest(text[:10]), self.assertRaises(ValueError):
                decode_upstream_json(text)
        for text in ("[" * 100 + "]" * 100, "[" + "[[]]," * 1000 + "0]", json.dumps({"code": "{[" * 1000})):
            self.assertEqual(json.loads(text), decode_upstream_json(text))

    def test_upstream_text_that_is_no_json_is_a_value_error(self) -> None:
        for data in (b"\xff", "{", "[" * 100_000):
            with self.assertRaises(ValueError):
                decode_upstream_json(data)


class TestSafeText(unittest.TestCase):
    def test_safe_text_has_no_control_characters_or_line_breaks(self) -> None:
        self.assertEqual("a\\x1b[2Jb\\nc\\u202e", safe_text("a\x1b[2Jb\nc\u202e"))

    def test_safe_text_is_never_longer_than_its_limit(self) -> None:
        self.assertEqual(10, len(safe_text("x" * 1000, 10)))

    def test_safe_text_redacts_keys_and_no_other_words(self) -> None:
        key = "sk-0123456789abcdef"
        for text, shown in (
            (key, "sk-***"),
            (f"model {key}, twice {key}!", "model sk-***, twice sk-***!"),
            (json.dumps(f"\n{key}"), '"\\nsk-***"'),
            (json.dumps(f"\x1b{key}"), '"\\u001bsk-***"'),
            ("task-management-list disk-usage-of-today sk-short", "task-management-list disk-usage-of-today sk-short"),
        ):
            self.assertEqual((shown, shown), (redact_keys(text), safe_text(text)))

    def test_safe_text_leaves_ordinary_text_unchanged(self) -> None:
        for text in ("deepseek-v4-pro · 思考", "你好\u3000世界", "👩‍💻 naïve 日本語 हिन्दी می‌خواهم"):
            self.assertEqual(text, safe_text(text))
            self.assertEqual(f'{{"a": "{text}"}}', readable_json({"a": text}))

    def test_readable_json_has_no_control_characters(self) -> None:
        text = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, 0x200B, 0x200E, 0x2028, 0x202E)))
        text += "\u2066\u2069\ufeff\ud800\U000e0041 and 中文"
        shown = readable_json({"a": text, "中\u202e": [text]})
        self.assertEqual({"a": text, "中\u202e": [text]}, json.loads(shown))
        self.assertTrue(shown.isprintable())
        self.assertIn("中文", shown)

    def test_readable_json_has_no_keys(self) -> None:
        self.assertEqual('{"a": "\\nsk-*** 中"}', readable_json({"a": "\nsk-0123456789abcdef 中"}))


WHOLE = '{"a": "x\\"{[,:", "b": [1, -2.5e+3, {"c": null}, []], "d": {"e": true, "f": {}}, "g": "雨\\n"}'


class TestPartialJson(unittest.TestCase):
    def assert_read(self, text: str, value: object) -> None:
        self.assertEqual(json.loads(close_json(text)), value, text)

    def test_complete_json_stays_unchanged(self) -> None:
        for text in (WHOLE, "{}", "[]", '{"a": [1, 2]}'):
            self.assertEqual(close_json(text), text)

    def test_an_incomplete_last_member_is_left_out(self) -> None:
        for cut in ('"', '"Ro', '"Ro\\', '"Ro\\u12', "-", "1.", "1e", "tr", "nul"):
            self.assert_read(f'{{"city": "Rom", "day": {cut}', {"city": "Rom"})
            self.assert_read(f'{{"days": ["Monday", {cut}', {"days": ["Monday"]})
        for cut in ("", ",", ', "', ', "da', ', "day"', ', "day":', ', "day": '):
            self.assert_read(f'{{"city": "Rom"{cut}', {"city": "Rom"})

    def test_a_complete_last_member_of_incomplete_json_stays(self) -> None:
        for last, value in (('"x"', "x"), ("12", 12), ("true", True), ("null", None), ("[", []), ("{", {})):
            self.assert_read(f'{{"a": {last}', {"a": value})

    def test_every_prefix_of_an_object_becomes_valid_json(self) -> None:
        for end in range(1, len(WHOLE) + 1):
            self.assertIsInstance(json.loads(close_json(WHOLE[:end])), dict, WHOLE[:end])

    def test_json_of_opening_brackets_is_completed_in_linear_time(self) -> None:
        began = time.process_time()
        for opening in ("[", '{"a":', "[1,"):
            self.assertTrue(close_json(opening * 50_000).endswith("]]" if "[" in opening else "}}"))
        # It took a minute while the open brackets were copied for each of them.
        self.assertLess(time.process_time() - began, 5)

    def test_text_that_is_no_json_does_not_become_json(self) -> None:
        for text in ("", "  ", "Rome", '{"a" "b"', '{"a": 1}}', "]"):
            with self.subTest(text), self.assertRaises(ValueError):
                json.loads(close_json(text))
