"""Upstream names for tools inside a namespace.

Codex (0.166) groups tools, and a call has both a `name` and a `namespace`. DeepSeek has functions only, with names of
at most 64 letters, digits, `_` and `-`. So each tool gets an upstream name:

    multi_agent_v1__spawn_agent     both names, if that is valid and no other tool of the request has it
    clock_v1__now_d18367a464        else, as for `now` of `clock.v1`, the beginnings of both and a hash of the whole

An upstream name depends on the two names alone unless it collides, and never on the order of the tools. So a chat has
the same bytes every time, and a call in its history has a name even if its tool is gone.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import count

# The namespace and the name in it.
QualifiedName = tuple[str, str]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")
# At most 64 together: 20 + 2 + 31 + 1 + 10. A tool's own name says more than its namespace.
_NAMESPACE_SHARE = 20
_NAME_SHARE = 31
_HASH_SHARE = 10
# Characters. Each function of a namespace repeats its description, and each costs tokens.
_MAX_DESCRIPTION = 200


def upstream_name(qualified: QualifiedName) -> str:
    """The upstream name of a tool if no other tool has it."""
    name = "__".join(qualified)
    return name if _NAME.fullmatch(name) else _hashed_name(qualified, 0)


def upstream_names(qualified: Iterable[QualifiedName], reserved: Collection[str]) -> dict[QualifiedName, str]:
    """A unique name for each tool; of two that collide (`a__b` with `c`, `a` with `b__c`) neither gets that name."""
    preferred = {each: upstream_name(each) for each in qualified}
    uses = Counter([*preferred.values(), *reserved])
    names = {each: name for each, name in preferred.items() if uses[name] == 1}
    used = {*reserved, *names.values()}
    for each in sorted(preferred.keys() - names.keys()):
        names[each] = next(name for name in (_hashed_name(each, attempt) for attempt in count()) if name not in used)
        used.add(names[each])
    return names


def describe(description: str | None, namespace: str, about: str | None) -> str | None:
    """A function's description after that of its namespace, `about`."""
    purpose = " ".join((about or "").split())
    if not purpose:
        return description
    group = f"Part of {_shorten(namespace)}: {_shorten(purpose)}"
    return f"{group}\n\n{description}" if description else group


def _hashed_name(qualified: QualifiedName, attempt: int) -> str:
    """The beginnings of both names and a hash, another with every attempt."""
    namespace, name = (_NOT_ALLOWED.sub("_", each) for each in qualified)
    whole = json.dumps([*qualified, attempt] if attempt else qualified)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_SHARE]
    return f"{namespace[:_NAMESPACE_SHARE]}__{name[:_NAME_SHARE]}_{digest}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 1] + "…"
