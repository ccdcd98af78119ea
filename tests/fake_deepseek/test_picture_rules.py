"""Pictures that DeepSeek refuses, and the requests that are answered with a description."""

import base64
import unittest
from typing import Any
from unittest import mock

from tests.fake_deepseek import contract, picture_rules

PNG = b"\x89PNG\r\n"


def picture(data: bytes = PNG) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def remote(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def body(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "deepseek-flash", "messages": [{"role": "user", "content": list(parts)}], **fields}


class TestPictureRules(unittest.TestCase):
    def assert_refused(self, words: str, *parts: dict[str, Any]) -> None:
        refusal = contract.refusal(body(*parts))
        self.assertIsNotNone(refusal)
        self.assertIn(words, refusal.message if refusal else "")

    def test_pictures_of_the_four_formats_are_accepted(self) -> None:
        for data in (PNG, b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF....WEBP"):
            with self.subTest(data):
                self.assertIsNone(contract.refusal(body(picture(data), remote("https://example.com/a.png"))))

    def test_other_data_and_other_urls_are_refused(self) -> None:
        self.assert_refused("Unsupported image format", picture(b"%PDF-1.7"))
        self.assert_refused("Unsupported image format", remote("data:image/png;base64,not base64"))
        self.assert_refused("Invalid image URL", remote("file:///etc/passwd"))
        self.assert_refused("Invalid image URL", remote("https://example.com/" + "a" * 8192))

    def test_too_much_is_refused(self) -> None:
        self.assert_refused("Too many images: 601", *[remote("https://example.com/a.png")] * 601)
        with mock.patch.multiple(picture_rules, _MAX_BYTES=8, _MAX_BYTES_TOGETHER=12):
            self.assert_refused("too large", picture(PNG + b"123"))
            self.assert_refused("too large", *[picture(PNG)] * 3)
            self.assertIsNone(contract.refusal(body(*[picture(PNG)] * 2)))
