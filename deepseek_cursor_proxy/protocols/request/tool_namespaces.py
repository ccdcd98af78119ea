"""Names for tools that live in a namespace.

Codex (0.166) groups tools, and a call into a group names both: `name` and `namespace`. DeepSeek knows functions alone,
by names of at most 64 letters, digits, `_` and `-`. So each gets a lowered name:

    multi_agent_v1__spawn_agent     both, if that is such a name and no other tool of the request has it
    clock_v1__now_d18367a464        else, as for `now` of `clock.v1`, what fits of both and a hash of the whole

Rule: a lowered name follows from the two alone unless another tool wants the same, and never from the order of the
tools; so a chat is the same bytes every time, and a call in its history has a name even when its tool is gone.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import count

# What a tool is called inside, and where: the namespace first.
QualifiedName = tuple[str, str]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ODD = re.compile(r"[^a-zA-Z0-9_-]")
# A shortened name is exactly as long as DeepSeek allows: 20 + 2 + 31 + 1 + 10. A tool's own name says more than the
# group it is in.
_NAMESPACE_SHARE = 20
_NAME_SHARE = 31
_HASH_SHARE = 10
# The words about a namespace stand in each of its functions, and are paid for in each.
_MOST_WORDS = 200


def upstream_name(inner: QualifiedName) -> str:
    """What DeepSeek calls the tool as long as no other tool has that name."""
    name = "__".join(inner)
    return name if _NAME.fullmatch(name) else _shortened(inner, 0)


def upstream_names(inner: Iterable[QualifiedName], taken: Collection[str]) -> dict[QualifiedName, str]:
    """A name for each tool that no other has; `taken` are the names of the tools that live in no namespace.

    `a__b` with `c` and `a` with `b__c` want the same name. Neither gets it: which comes first may change.
    """
    wishes = {each: upstream_name(each) for each in inner}
    wanted = Counter([*wishes.values(), *taken])
    names = {each: wish for each, wish in wishes.items() if wanted[wish] == 1}
    used = {*taken, *names.values()}
    for each in sorted(wishes.keys() - names.keys()):
        names[each] = next(name for name in (_shortened(each, attempt) for attempt in count()) if name not in used)
        used.add(names[each])
    return names


def describe(description: str | None, namespace: str, words: str | None) -> str | None:
    """A function's description behind what its namespace is said to be for."""
    about = " ".join((words or "").split())
    if not about:
        return description
    group = f"Part of {_cut(namespace)}: {_cut(about)}"
    return f"{group}\n\n{description}" if description else group


def _shortened(inner: QualifiedName, attempt: int) -> str:
    """What fits of both and a hash: another with every attempt, should a function be called just like it."""
    namespace, name = (_ODD.sub("_", each) for each in inner)
    whole = json.dumps([*inner, attempt] if attempt else inner)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_SHARE]
    return f"{namespace[:_NAMESPACE_SHARE]}__{name[:_NAME_SHARE]}_{digest}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 1] + "…"
