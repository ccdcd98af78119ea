"""Names of functions that DeepSeek accepts: at most 64 letters, digits, `_` and `-`.

A tool whose name it refuses is sent under another one, in the tools, the tool_choice and the history, and its calls go
to the client under its own:

    mcp.files/read  ->  mcp_files_read_7f22c29aff      the beginning of the name and a hash of the whole

A sent name depends on the name alone unless another tool of the request has it, so a chat has the same bytes every
time, also when tools are added, and a call in its history has a name even if its tool is gone. Identity, the store and
the writers know the client's names only; chat_stream.OwnNameReader puts them into an answer.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from itertools import count
from typing import TypeVar

Key = TypeVar("Key", str, tuple[str, str])

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")
_HASH_SHARE = 10
# At most 64 together: 53 + 1 + 10.
_NAME_SHARE = 53


# Every request brings the same few names.
@lru_cache(maxsize=1024)
def is_accepted(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def sent_name(name: str) -> str:
    """The name to send if no other tool has it. A call without a name stays so."""
    return name if not name or is_accepted(name) else _hashed_name(name, 0)


def sent_names(names: Collection[str]) -> dict[str, str]:
    """The names to send for those of the tools of a request that DeepSeek refuses."""
    refused = [name for name in names if not is_accepted(name)]
    if not refused:
        return {}
    preferred = {name: sent_name(name) for name in sorted(refused)}
    return unique_names(preferred, set(names).difference(refused), _hashed_name)


def unique_names(
    preferred: Mapping[Key, str], reserved: Collection[str], hashed: Callable[[Key, int], str]
) -> dict[Key, str]:
    """A unique name for each key; of two that prefer the same, neither gets it, but hashed ones."""
    uses = Counter([*preferred.values(), *reserved])
    names: dict[Key, str] = {key: name for key, name in preferred.items() if uses[name] == 1}
    used = {*reserved, *names.values()}
    for key in sorted(preferred.keys() - names.keys()):
        names[key] = next(name for name in (hashed(key, attempt) for attempt in count()) if name not in used)
        used.add(names[key])
    return names


def clean(name: str) -> str:
    """A name with `_` in place of the characters that DeepSeek refuses."""
    return _NOT_ALLOWED.sub("_", name)


def digest(value: object) -> str:
    """The hash at the end of a sent name."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:_HASH_SHARE]


def _hashed_name(name: str, attempt: int) -> str:
    return f"{clean(name)[:_NAME_SHARE]}_{digest([name, attempt] if attempt else name)}"
