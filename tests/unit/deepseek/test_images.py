import unittest

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek import images
from deepseek_cursor_proxy.errors import BadRequest, ProxyError, TooLarge

MIB = 1024 * 1024


def image_part(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: dict[str, object], role: str = "user") -> Message:
    return Message(role, parts, tool_call_id="c" if role == "tool" else None)


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
            self.assertRegex(images.placeholder(image_part(url)), rf"^\[image: {words}, [0-9a-f]{{12}}\]$", url[:40])
        self.assertRegex(images.placeholder(image_part("")), r"^\[image: [0-9a-f]{12}\]$")

    def test_the_placeholder_of_a_file_has_its_name(self) -> None:
        pdf = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
        self.assertRegex(images.placeholder(pdf), r"^\[file: a\.pdf, application/pdf, 3 B, ")
        self.assertRegex(images.placeholder({"type": "file", "file": {"file_id": "file-1"}}), r"^\[file: file-1, ")

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


class TestNewPictures(unittest.TestCase):
    def test_a_new_picture_is_one_of_the_last_turn_that_was_not_there_before(self) -> None:
        system, question = Message("system", "s"), Message("user", "q")
        cat, dog, answer = inline(3), inline(6), Message("assistant", "ok")
        pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}}
        upload = {"type": "file", "file": {"file_id": "f-1"}}
        call = Message("assistant", "", tool_calls=())
        done = Message("tool", "done", tool_call_id="c")
        rows: dict[str, tuple[bool, list[Message]]] = {
            "none": (False, [system, question]),
            "in the question": (True, [system, user(cat)]),
            "the first message": (True, [user(cat)]),
            "a file is none": (False, [user(pdf)]),
            "in a result": (True, [question, call, user(cat, role="tool")]),
            "in the question of a tool loop": (True, [user(cat), call, done, call, done]),
            "before a reminder": (True, [question, answer, user(cat), call, done, question]),
            "in a message of its own": (True, [question, answer, user(cat), question]),
            "of a turn before": (False, [user(cat), answer, question]),
            "of a tool loop before": (False, [question, call, user(cat, role="tool"), answer, question, call, done]),
            "the same again": (False, [user(cat), answer, user(cat)]),
            "another one": (True, [user(cat), answer, user(cat, dog)]),
            "an uploaded one": (True, [user(cat), answer, user(upload)]),
            "of an assistant": (False, [question, user(cat, role="assistant")]),
        }
        for name, (expected, messages) in rows.items():
            self.assertEqual(expected, images.has_new_picture(messages), name)
