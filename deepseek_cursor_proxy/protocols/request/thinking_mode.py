"""Reads from the fields of several hosts whether the model should think, and with which effort.

The first of these that is present decides:

    thinking                {"type": "enabled" | "disabled"}, DeepSeek's own; also true or false
    enable_thinking         Qwen's hosts
    chat_template_kwargs    thinking or enable_thinking, as vLLM and SGLang take them
    extra_body              any of these in it, from clients that do not unpack it as OpenAI's SDK does
    reasoning.enabled       OpenRouter's
    an effort of "none"     reasoning_effort, or reasoning.effort

Without any of them, or in an adaptive mode, the name of the model decides, then the setting.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from deepseek_cursor_proxy.deepseek import rules
from deepseek_cursor_proxy.protocols.request.field_checks import Json, bad_field, optional, optional_string

NAMES = frozenset(
    {"thinking", "enable_thinking", "chat_template_kwargs", "extra_body", "reasoning", "reasoning_effort"}
)
_Value = TypeVar("_Value")
_TYPES = {"enabled": True, "disabled": False}
_ADAPTIVE = ("adaptive", "auto")


class ThinkingOptions(NamedTuple):
    """The options of a request, None if absent; `effort` is in the client's words, `dropped` names unknown values."""

    thinking: bool | None = None
    effort: str | None = None
    dropped: tuple[str, ...] = ()


_NO_OPTIONS = ThinkingOptions()


def read(body: Json) -> ThinkingOptions:
    if NAMES.isdisjoint(body):
        return _NO_OPTIONS
    extra = optional(body, "extra_body", dict, "an object") or {}
    switches = (*_switches(body, ""), *_switches(extra, "extra_body."))
    reasoning = optional(body, "reasoning", dict, "an object") or {}
    thinking = _first((*switches, _flag(reasoning, "enabled", "reasoning.")))
    effort = _first((*_efforts(body, ""), *_efforts(extra, "extra_body.")))
    if thinking is None and effort == "none":
        thinking = False
    return ThinkingOptions(thinking, effort, tuple(_dropped(body, extra, effort)))


def _first(values: Iterable[_Value | None]) -> _Value | None:
    return next((each for each in values if each is not None), None)


def _switches(source: Json, at: str) -> Iterator[bool | None]:
    yield _thinking(source, at)
    yield _flag(source, "enable_thinking", at)
    template = optional(source, "chat_template_kwargs", dict, "an object", f"{at}chat_template_kwargs") or {}
    for name in ("thinking", "enable_thinking"):
        yield _flag(template, name, f"{at}chat_template_kwargs.")


def _thinking(source: Json, at: str) -> bool | None:
    thinking = source.get("thinking")
    if thinking is None or isinstance(thinking, bool):
        return thinking
    if not isinstance(thinking, dict):
        raise bad_field(f"{at}thinking", 'an object such as {"type": "disabled"}')
    return _TYPES.get(optional_string(thinking, "type", f"{at}thinking") or "")


def _flag(source: Json, name: str, at: str) -> bool | None:
    return optional(source, name, bool, "true or false", at + name)


def _efforts(source: Json, at: str) -> Iterator[str | None]:
    yield optional(source, "reasoning_effort", str, "a string", f"{at}reasoning_effort")
    yield optional_string(optional(source, "reasoning", dict, "an object") or {}, "effort", f"{at}reasoning")
    template = optional(source, "chat_template_kwargs", dict, "an object") or {}
    yield optional_string(template, "reasoning_effort", f"{at}chat_template_kwargs")


def _dropped(body: Json, extra: Json, effort: str | None) -> Iterator[str]:
    for name, known in (
        ("thinking", {"type"}),
        ("chat_template_kwargs", {"thinking", "enable_thinking", "reasoning_effort"}),
        ("extra_body", NAMES - {"extra_body"}),
        ("reasoning", {"effort", "enabled"}),
    ):
        inside = body.get(name)
        yield from (f"{name}.{inner}" for inner in inside if inner not in known) if isinstance(inside, dict) else ()
    for source in (body, extra):
        thinking = source.get("thinking")
        kind = thinking.get("type") if isinstance(thinking, dict) else None
        if kind is not None and kind not in _TYPES and kind not in _ADAPTIVE:
            yield f"thinking.type {kind[:40]}"
    if effort is not None and effort != "none" and effort not in rules.EFFORTS:
        yield f"reasoning_effort {effort}"
