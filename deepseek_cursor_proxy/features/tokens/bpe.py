r"""BpeTokenizer runs a Hugging Face `tokenizer.json` exactly: byte-level BPE.

    text ──▶ special tokens cut out ──▶ cut by each pattern in turn ──▶ words as bytes ──▶ pairs merged, best first

DeepSeek's files use no more than that. Any other option would change the counts, so a file that sets one is refused
with the name of the option. Merges are kept as integers: 128,000 of them take 13 MB.

Patterns use Oniguruma's syntax, which Splitter translates for `re`: `\p{L}` is any letter, `\s` is Unicode's white
space. Python has no `\p`, so a class is spelled out as ranges of characters from `unicodedata`. Python's `\s` has four
more control characters, so it is spelled out too. Other syntax passes only if it means the same in both, else it is
refused. The characters of a class depend on the version of Unicode: 14.0 in Python 3.11, 15.0 in 3.12, 15.1 in 3.13,
16.0 in 3.14. An older Python may split newer characters differently: rare scripts and Chinese characters, new emoji.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

# Most of a text is a few thousand words. So many take 5 MB.
_MAX_WORDS_KEPT = 50_000
# Longer words rarely occur twice.
_LONGEST_WORD_KEPT = 64
# Merging takes quadratic time in the length of a word, so a longer word is cut. The count may then be one too many for
# every thousand letters without a space.
_LONGEST_WORD = 1024
# Greater than the rank of any merge.
_NO_MERGE = 1 << 62


def read_tokenizer(path: Path) -> "BpeTokenizer":
    """The tokenizer in a file; raises OSError, or ValueError with the reason. Takes a second and 13 MB."""
    try:
        return BpeTokenizer(json.loads(path.expanduser().read_bytes()))
    except UnsupportedTokenizer as problem:
        raise ValueError(f"it has {problem}, which this program does not know") from None
    except (ValueError, RecursionError, RuntimeError, MemoryError) as error:
        raise ValueError(f"no tokenizer.json ({error})") from None


class BpeTokenizer:
    """Called by any thread, without a lock: `_lengths` is a plain dictionary, and a lost entry is computed again."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Takes a parsed tokenizer.json; raises UnsupportedTokenizer. Too slow for a request."""
        try:
            model = document["model"]
            _refuse_unknown(document, model)
            self._added = _added_tokens(document.get("added_tokens") or [], model["vocab"])
            self._splitters = [Splitter(pattern) for pattern in _patterns(document["pre_tokenizer"])]
            self._bytes = _byte_ids(model["vocab"])
            self._shift = max(model["vocab"].values()).bit_length()
            self._merges = _merges(model["vocab"], model["merges"], self._shift)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UnsupportedTokenizer):
                raise
            raise UnsupportedTokenizer(f"its structure ({type(error).__name__}: {error})") from None
        self._special = _alternatives(self._added)
        self._lengths: dict[str, int] = {}

    def count(self, text: str) -> int:
        total = 0
        for part, is_special in self._parts(text):
            total += 1 if is_special else self._count(part)
        return total

    def encode(self, text: str) -> list[int]:
        return [token for token, _ in self.spans(text)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The tokens of a text, each with the number of its bytes."""
        spans: list[tuple[int, int]] = []
        for part, is_special in self._parts(text):
            if is_special:
                spans.append((self._added[part], len(part.encode("utf-8", "replace"))))
            else:
                for word in self._words(part):
                    spans += self._merge(word)
        return spans

    def _parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield special tokens and the texts between them."""
        end = 0
        for match in self._special.finditer(text) if self._special is not None else ():
            if match.start() > end:
                yield text[end : match.start()], False
            yield match[0], True
            end = match.end()
        if end < len(text):
            yield text[end:], False

    def _words(self, text: str) -> list[str]:
        words = [text]
        for splitter in self._splitters:
            words = [piece for word in words for piece in splitter.pieces(word)]
        if len(text) <= _LONGEST_WORD:
            return words
        cuts = [(word, start) for word in words for start in range(0, len(word), _LONGEST_WORD)]
        return [word[start : start + _LONGEST_WORD] for word, start in cuts]

    def _count(self, text: str) -> int:
        total = 0
        for word, times in Counter(self._words(text)).items():
            length = self._lengths.get(word)
            if length is None:
                length = len(self._merge(word))
                if len(word) <= _LONGEST_WORD_KEPT:
                    if len(self._lengths) >= _MAX_WORDS_KEPT:
                        # Emptied at once: words in use are back in a moment, and no order has to be maintained.
                        self._lengths = {}
                    self._lengths[word] = length
            total += times * length
        return total

    def _merge(self, word: str) -> list[tuple[int, int]]:
        """The word's tokens and their sizes: the pair of lowest rank is merged first, the leftmost of equals."""
        merges, shift = self._merges, self._shift
        mask = (1 << shift) - 1
        tokens = [self._bytes[byte] for byte in word.encode("utf-8", "replace")]
        sizes = [1] * len(tokens)
        ranks = [merges.get(left << shift | right, _NO_MERGE) for left, right in pairwise(tokens)]
        while ranks and (best := min(ranks)) != _NO_MERGE:
            position = ranks.index(best)
            tokens[position : position + 2] = (best & mask,)
            sizes[position : position + 2] = (sizes[position] + sizes[position + 1],)
            del ranks[position]
            for changed in (position - 1, position):
                if 0 <= changed < len(ranks):
                    ranks[changed] = merges.get(tokens[changed] << shift | tokens[changed + 1], _NO_MERGE)
        return list(zip(tokens, sizes, strict=True))


# Each would change the tokens; DeepSeek's files set none.
_OPTIONS = "dropout unk_token continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges"


def _refuse_unknown(document: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    if model["type"] != "BPE":
        raise UnsupportedTokenizer(f"a model of type {model['type']!r}")
    for name in _OPTIONS.split():
        if model.get(name):
            raise UnsupportedTokenizer(f"{name!r} of the model")
    normalizer = document.get("normalizer")
    if normalizer is not None and normalizer != {"type": "Sequence", "normalizers": []}:
        raise UnsupportedTokenizer(f"the normalizer {normalizer.get('type')!r}")


def _patterns(pre_tokenizer: Mapping[str, Any]) -> list[str]:
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    *splits, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"] or last.get("use_regex", True):
        raise UnsupportedTokenizer("a pre-tokenizer that does not end in a plain ByteLevel")
    for step in splits:
        if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
            raise UnsupportedTokenizer(f"the pre-tokenizer {step['type']!r} with {step.get('behavior')!r}")
    return [step["pattern"]["Regex"] for step in splits]


def _added_tokens(added: Sequence[Mapping[str, Any]], vocabulary: Mapping[str, int]) -> dict[str, int]:
    for token in added:
        for name in ("single_word", "lstrip", "rstrip"):
            if token.get(name):
                raise UnsupportedTokenizer(f"{name!r} of the token {token['content']!r}")
    # The vocabulary's id wins over the entry's own.
    return {token["content"]: vocabulary.get(token["content"], token["id"]) for token in added if token["content"]}


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds the longest of these texts at each position."""
    # Grouped by the first two letters, so that not every < of a text is compared with a thousand tokens.
    by_beginning: dict[str, list[str]] = {}
    for text in sorted(texts, key=len, reverse=True):
        by_beginning.setdefault(text[:2], []).append(re.escape(text[2:]))
    # A token of one letter comes last: longer ones begin with it, too.
    ordered = sorted(by_beginning.items(), key=lambda group: len(group[0]), reverse=True)
    return re.compile("|".join(f"{re.escape(two)}(?:{'|'.join(rest)})" for two, rest in ordered)) if ordered else None


def _byte_ids(vocabulary: Mapping[str, int]) -> list[int]:
    missing = [byte for byte, letter in enumerate(_LETTERS) if letter not in vocabulary]
    if missing:
        raise UnsupportedTokenizer(f"a vocabulary without the byte {missing[0]}")
    return [vocabulary[letter] for letter in _LETTERS]


def _merges(vocabulary: Mapping[str, int], merges: Sequence[Any], shift: int) -> dict[int, int]:
    """Map each pair (left << shift | right) to its merge (rank << shift | merged token)."""
    ranks: dict[int, int] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        pair = vocabulary[left] << shift | vocabulary[right]
        ranks.setdefault(pair, rank << shift | vocabulary[left + right])
    return ranks


def _letters() -> list[str]:
    """Byte-level files write each byte as one visible letter: itself if it is one in Latin-1, else the next above."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0x100)} - {0xAD}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


_LETTERS = _letters()


# Oniguruma's \s, which is Unicode's White_Space.
_SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Beyond are only unassigned characters, those of private use, and a block of marks.
_PLANES = range(0x40000)
_MORE_MARKS = range(0xE0000, 0xE0200)

_ESCAPES = frozenset("rntfv0\\.^$*+?{}[]()|/-'\"#&~<>=!:, ")
# Plain text, an escape, or one of the constructs that are translated or refused.
_PIECE = re.compile(
    r"""\\(?:p\{(?P<name>\w+)\} | u(?P<code>[0-9A-Fa-f]{4}) | (?P<escaped>.))
    | (?P<opening>\[\^?) | (?P<closing>\]) | (?P<unknown>&& | \(\?[^:=!]) | [^\\\[\](&]+ | .""",
    re.DOTALL | re.VERBOSE,
)


class UnsupportedTokenizer(ValueError):
    """Names what is not supported, for the end of a sentence that names the file."""


class Splitter:
    """Cuts a text into matches and what lies between, by the smallest of three patterns: beyond U+FFFF `re` is slow."""

    def __init__(self, pattern: str) -> None:
        self._ascii, self._basic, self._full = (_compile(pattern, last) for last in (0x7F, 0xFFFF, 0x10FFFF))

    def pieces(self, text: str) -> list[str]:
        if text.isascii():
            pattern = self._ascii
        else:
            # Characters beyond U+FFFF take two units of UTF-16.
            is_basic = len(text.encode("utf-16-le", "surrogatepass")) == 2 * len(text)
            pattern = self._basic if is_basic else self._full
        matches = pattern.findall(text)
        if sum(map(len, matches)) == len(text):
            return matches
        cut: list[str] = []
        end = 0
        for match in pattern.finditer(text):
            cut += (text[end : match.start()], match[0])
            end = match.end()
        return [piece for piece in (*cut, text[end:]) if piece]


def _compile(pattern: str, last: int) -> re.Pattern[str]:
    try:
        compiled = re.compile(_translate(pattern, last))
    except re.error as error:
        raise UnsupportedTokenizer(f"the pattern {pattern!r} ({error})") from None
    if compiled.groups or compiled.fullmatch(""):
        raise UnsupportedTokenizer(f"the pattern {pattern!r} (it has groups, or matches nothing at all)")
    return compiled


def _translate(pattern: str, last: int) -> str:
    """The pattern for texts with no character beyond `last`."""
    written: list[str] = []
    is_in_class = False
    for piece in _PIECE.finditer(pattern):
        if piece["unknown"] or (piece["opening"] and is_in_class):
            raise UnsupportedTokenizer(f"{piece[0]!r} in the pattern {pattern!r}")
        if piece["name"]:
            written.append(_spell(_category(piece["name"], last), is_in_class))
        elif piece["escaped"]:
            written.append(_escape(piece["escaped"], is_in_class, pattern))
        else:
            is_in_class = bool(piece["opening"]) or (is_in_class and not piece["closing"])
            written.append(piece[0])
    return "".join(written)


def _escape(letter: str, is_in_class: bool, pattern: str) -> str:
    if letter == "s":
        return _spell(_SPACES, is_in_class)
    if letter == "S" and not is_in_class:
        return f"[^{_SPACES}]"
    if letter not in _ESCAPES:
        raise UnsupportedTokenizer(f"'\\{letter}' in the pattern {pattern!r}")
    return f"\\{letter}" if letter.isalnum() else re.escape(letter)


def _spell(ranges: str, is_in_class: bool) -> str:
    return ranges if is_in_class else f"[{ranges}]"


def _category(name: str, last: int) -> str:
    """The characters of a general category such as L or Lu up to `last`, written as inside a class."""
    runs = _runs(name)
    if not runs:
        raise UnsupportedTokenizer(f"the class \\p{{{name}}}")
    ranges = "".join(f"{_literal(run[0])}-{_literal(min(run[-1], last))}" for run in runs if run[0] <= last)
    # A class must not be empty, so it gets a character that no such text has.
    return ranges or chr(last + 1)


@cache
def _runs(name: str) -> tuple[range, ...]:
    runs = []
    for codes in (_PLANES, _MORE_MARKS):
        for is_in, run in groupby(codes, lambda code: unicodedata.category(chr(code)).startswith(name)):
            first, *others = run
            if is_in:
                runs.append(range(first, first + len(others) + 1))
    return tuple(runs)


def _literal(code: int) -> str:
    # A literal character compiles faster than an escape; ASCII might have a meaning of its own.
    return f"\\x{code:02x}" if code < 0x80 else chr(code)
