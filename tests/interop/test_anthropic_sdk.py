"""Answers of the Messages API, asked for with the official `anthropic` package, against the strict fake.

Whatever a test asks, every byte that comes back is checked against the package's own types when the test ends (see
typed).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic  # noqa: F401

from tests.fake_deepseek import Answer, Call
from tests.fake_deepseek.completion import PrefixCache
from tests.interop.command_line import MODEL
from tests.interop.typed import THOUGHT, Json
from tests.interop.typed_messages import LIMIT, QUESTION, TOOLS, MessagesCase, calls

# One answer, asked for in every way …


@dataclass(frozen=True)
class Variant:
    """A kind of answer, what its content and its end have to be, and what is asked for it."""

    answer: Answer
    blocks: tuple[str, ...]
    stop_reason: str = "end_turn"
    asked: Json = field(default_factory=dict)

    @property
    def body(self) -> Json:
        return {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION, **self.asked}


# What the package no longer names, and its older versions send.
FREE = {"extra_body": {"temperature": 0.5, "top_p": 0.9, "top_k": 5}}
OFF, ON = {"thinking": {"type": "disabled"}}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}
OMITTED = {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "high"}}
FORCED = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}}
TOLD = {"tools": TOOLS, "system": "Be short.", "metadata": {"user_id": '{"device": "ü"}'}, **FREE}
CITY, SHORT = ("get_weather", {"city": "Rom"}), {"max_tokens": 1040}
THREE = calls(("get_weather", {"city": '"雨"\n'}), ("get_location", {}), ("get_weather", {}))
BARE, CUT, HALF = (
    (Call("call_0", name, text),)
    for name, text in (("get_location", ""), ("get_weather", '{"city": "Rom", "da'), ("get_weather", '{"city": "Ro'))
)
SAID, CALLED, BOTH = ("thinking", "text"), ("thinking", "tool_use"), ("thinking", "text", "tool_use")

VARIANTS = {
    "text only": Variant(Answer(None, "Rain – 雨."), ("text",), asked=OFF),
    "thinking and text": Variant(Answer(THOUGHT, " Rain.\n"), SAID, asked=ON),
    "letter by letter": Variant(Answer(THOUGHT, "Rain 🌧.", calls(CITY), piece=1), BOTH, "tool_use", {"tools": TOOLS}),
    "thinking that is not told": Variant(Answer(THOUGHT, "Rain."), SAID, asked=OMITTED),
    "thinking alone": Variant(Answer(THOUGHT, None), ("thinking",)),
    "nothing at all": Variant(Answer(None, None), ()),
    "parallel calls": Variant(Answer(THOUGHT, None, THREE), ("thinking", *["tool_use"] * 3), "tool_use",
                              {"tools": TOOLS, "tool_choice": {"type": "auto"}}),
    "text and a call": Variant(Answer(THOUGHT, "I look it up.", calls(CITY)), BOTH, "tool_use", TOLD),
    "a call without arguments": Variant(Answer(THOUGHT, None, BARE), CALLED, "tool_use", {"tools": TOOLS}),
    "a forced tool": Variant(Answer(None, None, calls(CITY)), ("tool_use",), "tool_use", FORCED),
    "length": Variant(Answer(THOUGHT, "It is ra", finish_reason="length"), SAID, "max_tokens", SHORT),
    "length amid thinking": Variant(Answer(THOUGHT, None, finish_reason="length"), ("thinking",), "max_tokens", SHORT),
    "length amid a call": Variant(Answer(THOUGHT, None, CUT, finish_reason="length"), CALLED, "max_tokens",
                                  {"tools": TOOLS}),
    "length amid the first word of a call": Variant(Answer(THOUGHT, None, HALF, finish_reason="length"), CALLED,
                                                    "max_tokens", {"tools": TOOLS}),
    "content filter": Variant(Answer(THOUGHT, "It is", finish_reason="content_filter"), SAID, "refusal"),
    "stop sequences": Variant(Answer(THOUGHT, "Rain"), SAID, asked={"stop_sequences": ["END"]}),
    "a model of Anthropic's": Variant(Answer(THOUGHT, "Rain."), SAID, asked={"model": "claude-opus-4-8"}),
}  # fmt: skip


class VariantTest(MessagesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.start_proxy())

    def test_every_kind_of_answer_is_the_same_whole_streamed_and_added_up(self) -> None:
        for name, variant in VARIANTS.items():
            with self.subTest(name):
                self.assert_same_in_every_way(variant)

    def assert_same_in_every_way(self, variant: Variant) -> None:
        whole = self.once(variant, lambda: self.sdk.messages.create(**variant.body))
        self.assertEqual(tuple(block.type for block in whole.content), variant.blocks)
        self.assertEqual((whole.stop_reason, whole.model), (variant.stop_reason, variant.body["model"]))
        events = self.once(variant, lambda: [*self.sdk.messages.create(**variant.body, stream=True)])
        begun = [event.content_block.type for event in events if event.type == "content_block_start"]
        self.assertEqual(tuple(begun), variant.blocks)
        self.assertEqual(neutral(self.once(variant, lambda: self.added_up(variant))), neutral(whole))

    def once(self, variant: Variant, ask: Callable[[], Any]) -> Any:
        # Without its cache DeepSeek counts the same tokens every time.
        self.fake.cache = PrefixCache()
        # Not the answer that a way which failed left behind.
        self.fake.forget()
        self.fake.answer(variant.answer)
        return ask()

    def added_up(self, variant: Variant) -> Any:
        """The answer as the package's own accumulator has it in the end."""
        with self.sdk.messages.stream(**variant.body) as stream:
            return stream.get_final_message()

    def test_beta_paths_and_headers_are_answered_the_same(self) -> None:
        request = {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}
        betas = ["context-management-2025-06-27", "interleaved-thinking-2025-05-14"]
        self.fake.answer(Answer(THOUGHT, "Rain."), Answer(THOUGHT, "Rain."))
        plain = self.sdk.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION)
        beta = self.sdk.beta.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION, betas=betas, **request)
        self.assertEqual(neutral(beta)["content"], neutral(plain)["content"])

    def test_models_are_listed(self) -> None:
        self.assertEqual([model.id for model in self.sdk.models.list()], ["deepseek-v4-pro", "deepseek-flash"])


def neutral(message: Any) -> Json:
    """A message without what differs from one time to the next, and without what the package's helper adds."""
    found = message.to_dict()
    found["content"] = [
        {name: value for name, value in block.items() if name != "parsed_output"} for block in found["content"]
    ]
    return {name: value for name, value in found.items() if name not in ("id", "stop_details")}
