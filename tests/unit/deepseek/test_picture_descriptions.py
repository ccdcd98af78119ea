import base64
import unittest
from typing import Any

from deepseek_cursor_proxy.chat_memory import MIN_ITEMS, ChatMemory
from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek import images
from deepseek_cursor_proxy.deepseek.apis import chat_api
from deepseek_cursor_proxy.deepseek.images import (
    PicturedHistory,
    clean_description,
    description_request,
    has_new_picture,
)


def inline(data: bytes, media: str = "image/png") -> dict[str, Any]:
    return url(f"data:{media};base64,{base64.b64encode(data).decode()}")


def url(address: str, **detail: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address, **detail}}


def file(**fields: str) -> dict[str, Any]:
    return {"type": "file", "file": fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, Any], role: str = "user") -> Message:
    return Message(role, parts, tool_call_id="c" if role == "tool" else None)


CAT, DOG = inline(b"cat"), inline(b"dog")
ANSWER = Message("assistant", "ok")
PDF = file(file_data="data:application/pdf;base64,AAAA", filename="a.pdf")


class TestPictures(unittest.TestCase):
    def count(self, *parts: dict[str, Any], role: str = "user") -> int:
        return len(PicturedHistory((user(*parts, role=role),)).pictures)

    def test_equal_bytes_are_one_picture_however_they_are_written(self) -> None:
        spaced = url("data:image/png;base64," + "\n".join(base64.b64encode(b"cat").decode()))
        shout = url("DATA:image/webp;charset=x;BASE64," + base64.b64encode(b"cat").decode())
        as_file = file(file_data=CAT["image_url"]["url"], filename="cat.png")
        self.assertEqual(1, self.count(CAT, inline(b"cat", "image/jpeg"), spaced, shout, as_file))

    def test_other_bytes_urls_and_ids_are_other_pictures(self) -> None:
        address = "https://example.com/cat"
        others = [CAT, DOG, url(address), url(address + "?"), file(file_id=address), file(file_id="f-1"), url("")]
        damaged = [url("data:image/png;base64,A"), url("data:image/png;base64,AAAAA"), url("data:image/svg+xml,<svg>")]
        self.assertEqual(len(others) + len(damaged), self.count(*others, *damaged))

    def test_what_is_no_picture_or_not_from_a_user_or_tool_is_none(self) -> None:
        self.assertEqual(0, self.count(text("cat"), PDF, file(file_id="", filename="x")))
        for role, count in {"user": 1, "tool": 1, "assistant": 0, "system": 0}.items():
            self.assertEqual(count, self.count(CAT, role=role))


class TestRequest(unittest.TestCase):
    def test_the_request_differs_in_its_picture_only(self) -> None:
        asked = [description_request(picture, "flash") for picture in (CAT, DOG)]
        self.assertEqual(asked[0].messages[0], asked[1].messages[0])
        self.assertEqual([CAT, DOG], [each.messages[1].content[-1] for each in asked])
        self.assertFalse(asked[0].thinking)

    def test_a_picture_is_sent_without_its_detail_and_a_file_with_data_as_a_picture(self) -> None:
        for sent, expected in (
            (url("https://e.com/a", detail="low"), url("https://e.com/a")),
            (file(file_data="data:image/png;base64,AAAA", filename="a.png"), url("data:image/png;base64,AAAA")),
            (file(file_id="f-1"), file(file_id="f-1")),
        ):
            self.assertEqual(expected, description_request(sent, "flash").messages[1].content[-1])

    def test_a_description_has_no_outer_space_and_an_end(self) -> None:
        self.assertEqual("a cat", clean_description("\n a cat \n"))
        self.assertEqual(images._MAX_CHARACTERS + 2, len(clean_description("a" * 100_000)))


class TestPlace(unittest.TestCase):
    def place(self, *messages: Message, memory: ChatMemory | None = None, **words: str) -> tuple[Message, ...]:
        history = PicturedHistory(messages, memory or ChatMemory(0))
        names = {part["image_url"]["url"]: digest for digest, part in history.pictures.items()}
        pictures = {"cat": CAT["image_url"]["url"], "dog": DOG["image_url"]["url"]}
        return history.place({names[pictures[name]]: said for name, said in words.items() if pictures[name] in names})

    def test_a_description_is_text_between_its_placeholder_and_its_end(self) -> None:
        (message,) = self.place(user(text("Look."), CAT, text("Well?")), cat="A cat.\nIt sleeps.")
        self.assertRegex(
            str(message.content),
            r"^Look\.\n\[image: image/png, 3 B, [0-9a-f]{12}\] in words:\nA cat\.\nIt sleeps\.\n"
            r"\[end of [0-9a-f]{12}\]\nWell\?$",
        )

    def test_what_has_no_description_is_named_as_without_any(self) -> None:
        mixed = user(CAT, PDF, DOG)
        (message,) = self.place(mixed, cat="A cat.")
        named, placed = (chat_api.plain_text(each.content).split("\n") for each in (mixed, message))
        self.assertEqual(named[1:], placed[-2:])
        self.assertEqual((mixed,), self.place(mixed))

    def test_the_memory_returns_the_same_objects_until_a_description_comes(self) -> None:
        memory = ChatMemory()
        history = (user(text("Look."), CAT), user(DOG, role="tool"), *[ANSWER] * MIN_ITEMS)
        first = self.place(*history, memory=memory, cat="A cat.")
        second = self.place(*history, ANSWER, memory=memory, cat="A cat.")
        self.assertTrue(all(one is other for one, other in zip(first, second, strict=False)))
        third = self.place(*history, ANSWER, ANSWER, memory=memory, cat="A cat.", dog="A dog.")
        self.assertIs(first[0], third[0])
        self.assertIn("A dog.", third[1].content)
        self.assertEqual(third, self.place(*history, ANSWER, ANSWER, cat="A cat.", dog="A dog."))


class TestNewPictures(unittest.TestCase):
    def test_a_new_picture_is_one_of_the_last_turn_that_was_not_there_before(self) -> None:
        system, question = Message("system", "s"), Message("user", "q")
        call = Message("assistant", "", tool_calls=())
        done = Message("tool", "done", tool_call_id="c")
        rows: dict[str, tuple[bool, list[Message]]] = {
            "none": (False, [system, question]),
            "in the question": (True, [system, user(CAT)]),
            "the first message": (True, [user(CAT)]),
            "a file is none": (False, [user(PDF)]),
            "in a result": (True, [question, call, user(CAT, role="tool")]),
            "in the question of a tool loop": (True, [user(CAT), call, done, call, done]),
            "before a reminder": (True, [question, ANSWER, user(CAT), call, done, question]),
            "in a message of its own": (True, [question, ANSWER, user(CAT), question]),
            "of a turn before": (False, [user(CAT), ANSWER, question]),
            "of a tool loop before": (False, [question, call, user(CAT, role="tool"), ANSWER, question, call, done]),
            "the same again": (False, [user(CAT), ANSWER, user(CAT)]),
            "another one": (True, [user(CAT), ANSWER, user(CAT, DOG)]),
            "an uploaded one": (True, [user(CAT), ANSWER, user(file(file_id="f-1"))]),
            "of an assistant": (False, [question, user(CAT, role="assistant")]),
        }
        for name, (expected, messages) in rows.items():
            with self.subTest(name):
                self.assertEqual(expected, has_new_picture(messages))
