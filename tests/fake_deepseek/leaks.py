"""Calls as DeepSeek's models write them: every form seen in answers of servers that did not decode them."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tests.fake_deepseek.completion import Answer

Arguments = dict[str, Any]


class Markup(NamedTuple):
    """One form: what precedes the name of each tag, the name of the container, and whether strings are marked."""

    name: str
    mark: str
    container: str
    has_strings: bool = True

    def encode(self, calls: Sequence[tuple[str, Arguments]]) -> str:
        invokes = "\n".join(self._invoke(name, arguments) for name, arguments in calls)
        if not self.container:
            return invokes
        return f"<{self.mark}{self.container}>\n{invokes}\n</{self.mark}{self.container}>"

    def _invoke(self, name: str, arguments: Arguments) -> str:
        parameters = "".join(self._parameter(key, value) for key, value in arguments.items())
        return f'<{self.mark}invoke name="{name}">\n{parameters}</{self.mark}invoke>'

    def _parameter(self, key: str, value: Any) -> str:
        is_text = isinstance(value, str)
        text = value if is_text else json.dumps(value, ensure_ascii=False)
        kind = f' string="{str(is_text).lower()}"' if self.has_strings else ""
        return f'<{self.mark}parameter name="{key}"{kind}>{text}</{self.mark}parameter>\n'


class V3Markup(NamedTuple):
    name: str
    has_fence: bool

    def encode(self, calls: Sequence[tuple[str, Arguments]]) -> str:
        return f"<｜tool▁calls▁begin｜>{''.join(self._call(*call) for call in calls)}<｜tool▁calls▁end｜>"

    def _call(self, name: str, arguments: Arguments) -> str:
        text = json.dumps(arguments, ensure_ascii=False)
        inner = (
            f"function<｜tool▁sep｜>{name}\n```json\n{text}\n```" if self.has_fence else f"{name}<｜tool▁sep｜>{text}"
        )
        return f"<｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜>"


class HermesMarkup(NamedTuple):
    name: str

    def encode(self, calls: Sequence[tuple[str, Arguments]]) -> str:
        bodies = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls]
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


HERMES = HermesMarkup("Hermes")
FORMS: tuple[Markup | V3Markup, ...] = (
    Markup("V4", "｜DSML｜", "tool_calls"), Markup("V4.1", "｜DSML｜ ", "calls"),
    Markup("V3.2", "｜DSML｜", "function_calls"), Markup("tool_use", "｜DSML｜", "tool_use"),
    Markup("doubled", "｜｜DSML｜｜", "tool_calls"), Markup("double line", "‖DSML‖", "tool_calls"),
    Markup("ASCII", "|DSML|", "tool_calls"), Markup("ASCII doubled", "||DSML||", "function_calls"),
    Markup("blanks", " | DSML | ", "tool_calls"), Markup("no container", "｜DSML｜", ""),
    Markup("no string=", "｜DSML｜", "tool_calls", has_strings=False),
    Markup("no bars", "", "function_calls", has_strings=False), V3Markup("V3", has_fence=True),
    V3Markup("V3.1", has_fence=False),
)  # fmt: skip
Form = Markup | V3Markup


def leak(answer: Answer, form: Form, *, in_thinking: bool = False) -> Answer:
    """The answer of a server that does not decode calls: they are at the end of its text, or of its thinking."""
    if not answer.calls:
        return answer
    markup = form.encode([(call.name, json.loads(call.arguments)) for call in answer.calls])
    answer = replace(answer, calls=(), finish_reason="stop")
    if in_thinking:
        return replace(answer, reasoning=f"{answer.reasoning or ''}\n\n{markup}")
    return replace(answer, content=f"{answer.content}\n\n{markup}" if answer.content else markup)


# For texts and strings of calls: what may be taken for markup, and what JSON and Markdown escape.
WORDS = (
    "a", "é😀", " ", "\n", "\n\n", "\t", '"', "\\", "{", "}", "<", ">", "</", "<b>", "&lt;", "a < b", "x | y",
    "| DSML |", "<details", "`x", "~", "-->", "name=", "invoke", "<parameter>", "</div>", "｜", "calls", "1", "null",
    "[1]",
)  # fmt: skip


def some_text(rng: random.Random, most: int = 12) -> str:
    return "".join(rng.choices(WORDS, k=rng.randrange(most)))
