import json
import random
import unittest
from collections.abc import Sequence

from deepseek_cursor_proxy.protocols.tools import FreeTextReader, read_free_text

SIGNS = "é思\U0001f600"
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = \"\\n\"\n+x = '\t'\n*** End Patch\n"

# Arguments as the model may write them, and the text inside.
TABLE = {
    "plain": ('{"input": "hello"}', "hello"),
    "compact": ('{"input":"hello"}', "hello"),
    "spread out": ('\n { \t"input"\r\n :  "hello" \n } ', "hello"),
    "empty text": ('{"input":""}', ""),
    "a patch": (json.dumps({"input": PATCH}), PATCH),
    "a patch, not escaped to ASCII": (json.dumps({"input": SIGNS + PATCH}, ensure_ascii=False), SIGNS + PATCH),
    "every escape": (r'{"input":"\"\\\/\b\f\n\r\té\u0041"}', '"\\/\b\f\n\r\té' + "A"),
    "a pair of surrogates": (r'{"input":"a\ud83d\ude00b"}', "a\U0001f600b"),
    "upper-case hex": (r'{"input":"\uD83D\uDE00"}', "\U0001f600"),
    "half a pair": (r'{"input":"a\ud83db"}', "a\ud83db"),
    "half a pair at the end": (r'{"input":"a\ud83d"}', "a\ud83d"),
    "the wrong half first": (r'{"input":"\ude00\ud83d\ude00"}', "\ude00\U0001f600"),
    "a raw line break": ('{"input":"a\nb"}', "a\nb"),
    "an escape JSON does not know": (r'{"input":"\q\uZZ"}', r"\q\uZZ"),
    "a field too many behind it": ('{"input":"x","why":"y"}', "x"),
    "a field too many before it": ('{"why":["y"],"input":"x"}', "x"),
    "text that looks like arguments": (json.dumps({"input": '{"input": "x"}'}), '{"input": "x"}'),
    "broken off in the text": ('{"input":"ab', "ab"),
    "broken off in an escape": ('{"input":"ab\\', "ab"),
    "broken off in a code": ('{"input":"ab\\u00e', "ab"),
    "broken off between surrogates": (r'{"input":"ab\ud83d', "ab"),
    "broken off in the head": ('{"inp', ""),
    "nothing": ("", ""),
}  # fmt: skip
# Other arguments than declared are returned unchanged.
UNCHANGED = ("{}", "[]", "{{", "null", '"text"', PATCH, '{"patch": "x"}', '{"input": 7}', '{"input": null}')
UNCHANGED += ('{"in put": "x"}', '{"input" "x"}', '{"other": "half')


def read(fragments: Sequence[str]) -> str:
    reader = FreeTextReader()
    texts = [reader.feed(fragment) for fragment in fragments]
    return "".join([*texts, reader.end()])


class TestFreeTextReader(unittest.TestCase):
    def test_free_text_is_the_same_however_its_arguments_are_cut(self) -> None:
        cases = {**TABLE, **{text: (text, text) for text in UNCHANGED}}
        for name, (arguments, text) in cases.items():
            with self.subTest(name):
                self.assertEqual((text, text), (read_free_text(arguments), read(arguments)))
                for at in range(len(arguments) + 1):
                    self.assertEqual(text, read([arguments[:at], arguments[at:]]), at)

    def test_free_text_is_returned_as_soon_as_it_is_known(self) -> None:
        reader = FreeTextReader()
        texts = [reader.feed(piece) for piece in ('{"input"', ': "ab', "c\\", 'n\\"d', '"', "}")]
        self.assertEqual(["", "ab", "c", '\n"d', "", ""], texts)
        self.assertEqual("", reader.end())

    def test_any_free_text_survives_the_round_trip(self) -> None:
        rng = random.Random(3)
        letters = ("a", '"', "\\", "/", "u", "\n", "\x00", "é", "\U0001f600", "\ud83d", "\ude00", "{", "}", " ")
        for _ in range(300):
            text = "".join(rng.choice(letters) for _ in range(rng.randrange(12)))
            # Two halves side by side are one character, in JSON as in the answer.
            text = json.loads(json.dumps(text))
            for ascii_only in (True, False):
                arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
                pieces = []
                while arguments:
                    size = rng.randrange(1, 5)
                    pieces.append(arguments[:size])
                    arguments = arguments[size:]
                self.assertEqual(text, read(pieces), (text, pieces))
