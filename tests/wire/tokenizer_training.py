"""Makes tokenizer.json, a small byte-level BPE of the shape that DeepSeek's has, from texts of our own.

    python -m tests.wire.tokenizer_training

The numbers in tokenizer_vectors.json are what the package `tokenizers` (0.23.3) makes of them with this file.
"""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

from deepseek_cursor_proxy.features.tokens.bpe import _LETTERS, Splitter
from tests.unit.features.tokens.test_estimate import REAL

PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ヿ]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
SPECIAL = ("<｜begin｜>", "<｜end｜>", "<think>", "<thinking>", "<")
MERGES = 500


def main() -> None:
    vocabulary = {letter: number for number, letter in enumerate(sorted(_LETTERS))}
    merges = learned(words("\n".join(REAL) + Path("README.md").read_text(encoding="utf-8")[:20_000]))
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    added = [
        {"id": len(vocabulary) + place, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for place, text in enumerate(SPECIAL)
    ]
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in PATTERNS
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [" ".join(merge) for merge in merges]},
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (Path(__file__).parent / "tokenizer.json").write_text(text + "\n", encoding="utf-8")


def words(text: str) -> Counter[tuple[str, ...]]:
    pieces = [text]
    for pattern in PATTERNS:
        splitter = Splitter(pattern)
        pieces = [piece for each in pieces for piece in splitter.pieces(each)]
    return Counter(tuple(_LETTERS[byte] for byte in piece.encode()) for piece in pieces)


def learned(left_over: Counter[tuple[str, ...]]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    while len(found) < MERGES:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in left_over.items():
            for pair in pairwise(word):
                pairs[pair] += times
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        found.append(best)
        joined: Counter[tuple[str, ...]] = Counter()
        for word, times in left_over.items():
            joined[with_joined(word, best)] += times
        left_over = joined
    return found


def with_joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    written = " ".join(word)
    # A letter of this alphabet is never a space.
    pattern = rf"(?<!\S){re.escape(' '.join(pair))}(?!\S)"
    return tuple(re.sub(pattern, lambda _: "".join(pair), written).split(" "))


if __name__ == "__main__":
    main()
