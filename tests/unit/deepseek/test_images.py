import unittest

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek import images
from deepseek_cursor_proxy.errors import BadRequest, ProxyError, TooLarge

MIB = 1024 * 1024


def image_part(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def inline(size: int) -> dict[str, object]:
    return image_part("data:image/png;base64," + "A" * (size * 4 // 3))


class TestPlaceholder(unittest.TestCase):
    def test_the_placeholder_of_an_image_has_its_kind_size_and_digest(self) -> None:
        for url, words in {
            "data:image/png;base64,AAAA": r"image/png, 3 B",
            "data:image/png;base64,AA==": r"image/png, 1 B",
            "data:image/jpeg;base64," + "A" * 16000: r"image/jpeg, 12 kB",
            "DATA:image/webp;base64," + "A" * 4_000_000: r"image/webp, 3\.0 MB",
            "https://example.com/a.png": r"https://example\.com/a\.png",
            "https://e.com/a\n]": r"https://e\.com/a\?\]",
            "data:": r"text/plain, 0 B",
        }.items():
            with self.subTest(url[:40]):
                self.assertRegex(images.placeholder(image_part(url)), rf"^\[image: {words}, [0-9a-f]{{12}}\]$")
        self.assertRegex(images.placeholder(image_part("")), r"^\[image: [0-9a-f]{12}\]$")

    def test_the_placeholder_of_a_file_has_its_name(self) -> None:
        pdf = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
        self.assertRegex(images.placeholder(pdf), r"^\[file: a\.pdf, application/pdf, 3 B, ")
        self.assertRegex(images.placeholder({"type": "file", "file": {"file_id": "file-1"}}), r"^\[file: file-1, ")

    def test_equal_images_have_equal_placeholders_and_others_have_not(self) -> None:
        first, again, other = (images.placeholder(image_part(f"data:image/png;base64,{x}AA")) for x in "AAB")
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_placeholders_of_long_urls_are_short_but_differ(self) -> None:
        one, two = (images.placeholder(image_part("https://e.com/" + "x" * 500 + end)) for end in "ab")
        self.assertLess(len(one), 260)
        self.assertNotEqual(one, two)


class TestImageLimits(unittest.TestCase):
    def check(self, *parts: dict[str, object], role: str = "user") -> None:
        images.check([Message(role, parts), Message("user", "text")])

    def test_images_within_deepseeks_limits_pass(self) -> None:
        self.check(*[image_part("https://example.com/" + "x" * 8000)] * 600)
        self.check(inline(25_000_000))
        self.check(inline(40 * MIB), role="assistant")

    def test_images_beyond_a_limit_are_refused_with_the_limit(self) -> None:
        refused: tuple[tuple[list[dict[str, object]], type[ProxyError], str], ...] = (
            ([inline(33 * MIB)], TooLarge, "32 MiB"),
            ([inline(22 * MIB)] * 3, TooLarge, "64 MiB"),
            ([image_part("https://e.com")] * 601, TooLarge, "600"),
            ([image_part("https://e.com/" + "x" * 8192)], BadRequest, "8192"),
        )
        for parts, kind, limit in refused:
            for role in ("user", "tool"):
                with self.subTest(limit=limit, role=role), self.assertRaises(kind) as caught:
                    self.check(*parts, role=role)
                self.assertIn(limit, caught.exception.message)
                self.assertEqual("messages", caught.exception.param)
