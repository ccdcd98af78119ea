"""Upstream names for tools inside a namespace.

Codex (0.166) groups tools, and a call has both a `name` and a `namespace`. DeepSeek has functions only. So each tool
gets an upstream name, which deepseek/tools/tool_names would accept:

    multi_agent_v1__spawn_agent     both names, if that is valid and no other tool of the request has it
    clock_v1__now_d18367a464        else, as for `now` of `clock.v1`, the beginnings of both and a hash of the whole

An upstream name depends on the two names alone unless it collides, and never on the order of the tools. So a chat has
the same bytes every time, and a call in its history has a name even if its tool is gone.
"""

from collections.abc import Collection, Iterable

from deepseek_cursor_proxy.deepseek.tools import tool_names

# The namespace and the name in it.
QualifiedName = tuple[str, str]

# At most 64 together: 20 + 2 + 31 + 1 + 10. A tool's own name says more than its namespace.
_NAMESPACE_SHARE = 20
_NAME_SHARE = 31
# Characters. Each function of a namespace repeats its description, and each costs tokens.
_MAX_DESCRIPTION = 200


def upstream_name(qualified: QualifiedName) -> str:
    """The upstream name of a tool if no other tool has it."""
    name = "__".join(qualified)
    return name if tool_names.is_accepted(name) else _hashed_name(qualified, 0)


def upstream_names(qualified: Iterable[QualifiedName], reserved: Collection[str]) -> dict[QualifiedName, str]:
    """A unique name for each tool; of two that collide (`a__b` with `c`, `a` with `b__c`) neither gets that name."""
    return tool_names.unique_names({each: upstream_name(each) for each in qualified}, reserved, _hashed_name)


def describe(description: str | None, namespace: str, about: str | None) -> str | None:
    """A function's description after that of its namespace, `about`."""
    purpose = " ".join((about or "").split())
    if not purpose:
        return description
    group = f"Part of {_shorten(namespace)}: {_shorten(purpose)}"
    return f"{group}\n\n{description}" if description else group


def _hashed_name(qualified: QualifiedName, attempt: int) -> str:
    """The beginnings of both names and a hash, another with every attempt."""
    namespace, name = map(tool_names.clean, qualified)
    digest = tool_names.digest([*qualified, attempt] if attempt else qualified)
    return f"{namespace[:_NAMESPACE_SHARE]}__{name[:_NAME_SHARE]}_{digest}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 1] + "…"
