import unittest
from typing import Any

from deepseek_cursor_proxy.protocols import messages
from tests.support.bad_requests import assert_named

URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}


def one(part: Any) -> Any:
    return messages.read_part(part, "at")


class TestContent(unittest.TestCase):
    def test_text_parts_of_every_api_are_joined(self) -> None:
        parts = [{"type": kind, "text": kind} for kind in ("text", "input_text", "output_text")]
        parts += [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": None}]
        self.assertEqual("text\ninput_text\noutput_text\nno\n", messages.read_content(parts, "at"))
        self.assertEqual(("", "", "x"), tuple(messages.read_content(value, "at") for value in (None, [], "x")))

    def test_an_image_of_every_api_becomes_the_same_part(self) -> None:
        for part in (
            IMAGE,
            {"type": "image_url", "image_url": URL},
            {"type": "input_image", "image_url": URL},
            {"type": "input_image", "image_url": {"url": URL}, "detail": "galactic"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "image", "source": {"type": "url", "url": URL}, "cache_control": {"type": "ephemeral"}},
        ):
            self.assertEqual(IMAGE, one(part), part)

    def test_an_image_detail_that_deepseek_knows_stays(self) -> None:
        for part in (
            {"type": "input_image", "image_url": URL, "detail": "low"},
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        ):
            self.assertEqual({"url": URL, "detail": "low"}, one(part)["image_url"])

    def test_files_of_every_api_become_file_parts(self) -> None:
        data = {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}
        document = {"type": "document", "title": "a.pdf", "source": {"type": "base64", "data": "AA"}}
        for part in ({"type": "file", "file": data}, {"type": "input_file", **data}, document):
            self.assertEqual({"type": "file", "file": data}, one(part))
        for part in (
            {"type": "input_image", "file_id": "f"},
            {"type": "input_file", "file_id": "f"},
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
        ):
            self.assertEqual({"type": "file", "file": {"file_id": "f"}}, one(part))
        text = {"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}
        self.assertEqual("[document: T]\nwords", one(text)["text"])

    def test_a_content_part_of_an_unknown_kind_becomes_its_json(self) -> None:
        for part, text in (
            ({"type": "video", "id": 1}, '{"type":"video","id":1}'),
            ({"type": ["odd"]}, '{"type":["odd"]}'),
            ({"type": "image", "source": {"type": "cloud"}}, '{"type":"image","source":{"type":"cloud"}}'),
            ({"type": "file", "file": {}}, '{"type":"file","file":{}}'),
        ):
            self.assertEqual({"type": "text", "text": text}, one(part))

    def test_long_base64_in_an_unknown_part_becomes_a_placeholder(self) -> None:
        for data in ("iVBORw0KGgo" * 100, "data:audio/wav;base64," + "UklGR" * 300 + "==", "gAAA-_" * 200):
            part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}, "more": [data]}
            words = one(part)["text"]
            self.assertEqual((2, True), (words.count(f"[{len(data)} characters]"), '"format":"wav"' in words))
        for text in ("雨" * 2000, "a b " * 500, "x" * 999, "https://x.test/?q=" + "a" * 2000):
            self.assertIn(text, one({"type": "a part of tomorrow", "says": text})["text"])

    def test_cache_control_is_left_out_of_an_unknown_part(self) -> None:
        for part in (
            {"type": "search_result", "title": "T", "content": []},
            {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}},
        ):
            self.assertEqual(one(part), one({**part, "cache_control": {"type": "ephemeral"}}))

    def test_a_bad_content_part_is_a_400_that_names_it(self) -> None:
        def image(url: Any, **fields: Any) -> dict[str, Any]:
            return {"type": "image_url", "image_url": url, **fields}

        rows = (
            ("", 7),
            (".text", {"type": "text", "text": 7}),
            (".image_url", {"type": "image_url"}, image(7), image(None, type="input_image")),
            (".image_url.url", image({"url": 7})),
            (".file_id", {"type": "input_image", "file_id": 7}),
            (".detail", image(URL, type="input_image", detail=7)),
            (".source", {"type": "image"}),
            (".source.data", {"type": "image", "source": {"type": "base64", "data": 7}}),
            (".source.url", {"type": "image", "source": {"type": "url", "url": 7}}),
            (".file.file_id", {"type": "file", "file": {"file_id": 7}}),
        )
        assert_named(self, one, "at", *rows)
