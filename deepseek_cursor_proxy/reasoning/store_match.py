"""Match stored texts with a turn: which of them is its reasoning, and what proves it.

The texts come from the store by the keys of the turn (see identity). A key proves a reasoning only if it leads to one
text; of several, what the client sent may decide: a thinking block, or the reasoning itself. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from deepseek_cursor_proxy.conversation import Message, is_blank, remove_spaces
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.reasoning import thinking_blocks
from deepseek_cursor_proxy.reasoning.identity import TurnKeys
from deepseek_cursor_proxy.reasoning.thinking_blocks import Block

# The names of the proofs in traces, strongest first, each with the attribute of TurnKeys that holds its keys.
_PROOFS = {
    "exact": "exact",
    "linked": "aliases",
    "call": "calls",
    "result": "results",
    "talk": "dialogue",
    "place": "round",
}

# For each key the texts recorded under it, newest first.
StoredTexts = Mapping[bytes, Sequence[str]]


class StoreMatch(NamedTuple):
    """The reasoning that the store proves for a turn (None: it proves none), and the proof or the lack of one."""

    reasoning: str | None
    proof: str
    # The key that found it, if it depends on nothing before the turn: see PreparedRequest.aliases.
    key: bytes | None = None
    # Whether it takes the place of a different reasoning that the client sent.
    beats_client: bool = False


_UNKNOWN = StoreMatch(None, "unknown")


def match_sent(sent: Sequence[str] | None, shown: Block | None) -> StoreMatch | None:
    """The reasoning that this chat has sent for a turn before, whatever other chats have stored since."""
    if sent is None or (shown is not None and sent[0] not in shown.readings and _contradicts(shown, sent[:1])):
        return None
    return StoreMatch(None, "sent without") if sent[0] == FILLER else StoreMatch(sent[0], "sent")


def match_turn(keys: TurnKeys, stored: StoredTexts, shown: Block | None = None) -> StoreMatch:
    """The reasoning of a turn, by the strongest of its keys that leads to exactly one.

    Two stored turns that both fit and differ prove nothing, unless the block that the client sent, `shown`, decides.
    """
    if not stored:
        return _UNKNOWN
    exact = stored.get(keys.exact, ())
    if len(exact) == 1:
        # The usual case; computing the weaker keys of such a turn would be wasted.
        return StoreMatch(exact[0], "exact")
    doubt = "unknown"
    for proof in _PROOFS:
        known = [key for key in _keys_of(keys, proof) if key in stored]
        if not known:
            continue
        texts = {key: _choose(stored[key], shown) for key in known}
        whole = dict.fromkeys(text for text in texts.values() if text is not None)
        if proof == "linked" and (exact or (shown is not None and _contradicts(shown, whole))):
            # The model has produced another reasoning exactly here since; the alias is of another chat.
            continue
        if proof in ("talk", "place") and shown is not None and _contradicts(shown, whole):
            # The client shows another reasoning: this is another chat's turn with the same text.
            return StoreMatch(None, f"contradicted {proof}")
        if None not in texts.values():
            # A client that merged two turns into one message left the calls of both in it, in order.
            joined = "\n\n".join(text for text in whole if text)
            certain = [key for key in texts if len(stored[key]) == 1 and proof not in ("exact", "linked")]
            return StoreMatch(joined, proof, certain[0] if certain and len(whole) == 1 else None)
        if doubt == "unknown":
            doubt = f"ambiguous {proof}"
    return StoreMatch(None, doubt)


def own_words_key(message: Message, keys: TurnKeys, stored: StoredTexts) -> bytes | None:
    """The key of a turn by the client's reasoning and text; None if the reasoning is absent or stored exactly here."""
    exact, reasoning = stored.get(keys.exact, ()), message.reasoning
    if not exact or reasoning is None or is_blank(reasoning) or reasoning in exact:
        return None
    return keys.words_key(remove_spaces(f"{reasoning}{message.content}"))


def match_client(message: Message, match: StoreMatch, keys: TurnKeys, stored: StoredTexts) -> StoreMatch:
    """The match of a turn whose reasoning the client sent, perhaps changed; `match` is the one without it.

    Clients trim and join reasoning, or send a placeholder for it. The stored text beats theirs if it has the same words
    and other white space, by any proof; or different words, by the exact key: then it is what the model wrote here. But
    a client that has cut its history may begin like another chat, and still have what the model wrote in its own.
    """
    exact, reasoning = stored.get(keys.exact, ()), message.reasoning
    if reasoning is None or is_blank(reasoning) or reasoning in exact:
        return match
    words = remove_spaces(reasoning)
    for proof in _PROOFS:
        texts = (text for key in _keys_of(keys, proof) for text in stored.get(key, ()))
        alike = {text for text in texts if remove_spaces(text) == words}
        if len(alike) == 1 and reasoning not in alike:
            return StoreMatch(alike.pop(), proof, beats_client=True)
        if alike:
            # The same text, or several that differ in white space only.
            return match
        if proof == "exact" and own_words_key(message, keys, stored) in stored:
            return match
        if proof == "exact" and len(exact) == 1:
            # An empty one is no reason to drop what the client has.
            return match if is_blank(exact[0]) else StoreMatch(exact[0], proof, beats_client=True)
    # Of several, the one that this chat has sent before.
    return match._replace(beats_client=match.proof == "sent" and match.reasoning in exact)


def _keys_of(keys: TurnKeys, proof: str) -> tuple[bytes, ...]:
    found: bytes | tuple[bytes, ...] = getattr(keys, _PROOFS[proof])
    return (found,) if isinstance(found, bytes) else found


def _choose(texts: Sequence[str], shown: Block | None) -> str | None:
    """The one text recorded under a key, or the one of several that the client shows; None when that is uncertain."""
    if len(texts) == 1:
        return texts[0]
    return next((text for text in texts if shown is not None and text in shown.readings), None)


def _contradicts(shown: Block, texts: Iterable[str]) -> bool:
    return bool(shown.reasoning) and not all(thinking_blocks.fits(text, shown) for text in texts)
