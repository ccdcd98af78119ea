"""Answers of the Messages API, asked for with the official `anthropic` package, against the strict fake.

Not part of `python -m unittest`: the package has to be installed (`pip install '.[interop]'`), then
`python -m unittest discover -s tests/interop` runs it. Whatever a test asks, every byte that comes back is checked
against the package's own types when the test ends (see typed).
"""

import unittest
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deepseek_cursor_proxy.lab.completion import PrefixCache
from deepseek_cursor_proxy.lab.fake_deepseek import Answer, Call, Failure

try:
    import anthropic
except ImportError:
    raise unittest.SkipTest("the anthropic package is not installed: pip install '.[interop]'") from None

from tests.interop.messages_case import LIMIT, TOOLS, WEATHER, MessagesCase, calls
from tests.interop.recorded_case import KEY, MODEL, THOUGHT
from tests.interop.typed import Json

QUESTION = ({"role": "user", "content": "What is the weather?"},)

# One answer, asked for in every way …


@dataclass(frozen=True)
class Variant:
    """A kind of answer, what is asked for it, and what its content and its end have to be."""

    answer: Answer
    blocks: tuple[str, ...]
    stop_reason: str = "end_turn"
    asked: Json = field(default_factory=dict)

    @property
    def body(self) -> Json:
        return {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION, **self.asked}


# What the package no longer names, and its older versions send.
FREE = {"extra_body": {"temperature": 0.5, "top_p": 0.9, "top_k": 5}}

VARIANTS = {
    "text only": Variant(Answer(None, "Rain – 雨."), ("text",), asked={"thinking": {"type": "disabled"}}),
    "thinking and text": Variant(
        Answer(THOUGHT, " Rain.\n"),
        ("thinking", "text"),
        asked={"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    "letter by letter": Variant(
        Answer(THOUGHT, "Rain 🌧.", calls(("get_weather", {"city": "雨"})), piece=1),
        ("thinking", "text", "tool_use"),
        "tool_use",
        {"tools": TOOLS},
    ),
    "thinking that is not told": Variant(
        Answer(THOUGHT, "Rain."),
        ("thinking", "text"),
        asked={"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "high"}},
    ),
    "thinking alone": Variant(Answer(THOUGHT, None), ("thinking",)),
    "nothing at all": Variant(Answer(None, None), ()),
    "parallel calls": Variant(
        Answer(THOUGHT, None, calls(("get_weather", {"city": '"雨"\n'}), ("get_location", {}), ("get_weather", {}))),
        ("thinking", "tool_use", "tool_use", "tool_use"),
        "tool_use",
        {"tools": TOOLS, "tool_choice": {"type": "auto"}},
    ),
    "text and a call": Variant(
        Answer(THOUGHT, "I look it up.", calls(("get_weather", {"city": "Rom"}))),
        ("thinking", "text", "tool_use"),
        "tool_use",
        {"tools": TOOLS, "system": "Be short.", "metadata": {"user_id": '{"device": "ü"}'}, **FREE},
    ),
    "a call without arguments": Variant(
        Answer(THOUGHT, None, (Call("call_0", "get_location", ""),)),
        ("thinking", "tool_use"),
        "tool_use",
        {"tools": TOOLS},
    ),
    "a forced tool": Variant(
        Answer(None, None, calls(("get_weather", {"city": "Rom"}))),
        ("tool_use",),
        "tool_use",
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}},
    ),
    "length": Variant(
        Answer(THOUGHT, "It is ra", finish_reason="length"), ("thinking", "text"), "max_tokens", {"max_tokens": 40}
    ),
    "length amid thinking": Variant(
        Answer(THOUGHT, None, finish_reason="length"), ("thinking",), "max_tokens", {"max_tokens": 40}
    ),
    "length amid a call": Variant(
        Answer(THOUGHT, None, (Call("call_0", "get_weather", '{"city": "Rom", "da'),), finish_reason="length"),
        ("thinking", "tool_use"),
        "max_tokens",
        {"tools": TOOLS},
    ),
    "length amid the first word of a call": Variant(
        Answer(THOUGHT, None, (Call("call_0", "get_weather", '{"city": "Ro'),), finish_reason="length"),
        ("thinking", "tool_use"),
        "max_tokens",
        {"tools": TOOLS},
    ),
    "content filter": Variant(
        Answer(THOUGHT, "It is", finish_reason="content_filter"), ("thinking", "text"), "refusal"
    ),
    "stop sequences": Variant(Answer(THOUGHT, "Rain"), ("thinking", "text"), asked={"stop_sequences": ["END"]}),
    "a model of Anthropic's": Variant(
        Answer(THOUGHT, "Rain."), ("thinking", "text"), asked={"model": "claude-opus-4-8"}
    ),
}


class VariantTest(MessagesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.proxy())

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

    def test_the_answer_says_exactly_what_the_model_did(self) -> None:
        self.fake.answer(Answer(THOUGHT, " Rain.\n", calls(("get_weather", {"city": "雨"}), ("get_location", {}))))
        content = self.sdk.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION, tools=TOOLS).content
        thinking, text, *uses = content
        self.assertEqual((thinking.thinking, text.text), (THOUGHT, " Rain.\n"))
        self.assertEqual(
            [(use.id, use.name, use.input) for use in uses],
            [
                ("call_00", "get_weather", {"city": "雨"}),
                ("call_01", "get_location", {}),
            ],
        )

    def test_a_forced_tool_that_was_only_written_down_is_a_call(self) -> None:
        said = Answer(None, '```json\n{"name": "get_weather", "input": {"city": "Rom"}}\n```')
        self.fake.answer(said, said)
        body = {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION, "tools": TOOLS}
        body["tool_choice"] = {"type": "any"}
        whole = self.sdk.messages.create(**body)
        with self.sdk.messages.stream(**body) as stream:
            streamed = stream.get_final_message()
        for message in (whole, streamed):
            [use] = message.content
            self.assertEqual((use.type, use.name, use.input), ("tool_use", "get_weather", {"city": "Rom"}))
            self.assertEqual(message.stop_reason, "tool_use")

    def test_thinking_that_is_not_told_is_signed_all_the_same(self) -> None:
        self.fake.answer(Answer(THOUGHT, "Rain."))
        asked = {"type": "adaptive", "display": "omitted"}
        message = self.sdk.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION, thinking=asked)
        self.assertEqual(message.content[0].thinking, "")
        self.assertNotIn(THOUGHT.strip(), message.content[0].signature)

    def test_a_stream_is_never_silent_while_the_model_thinks(self) -> None:
        """Neither when DeepSeek says nothing, nor when what it says is not to be told."""
        self.sdk = self.client(self.proxy(heartbeat_interval=0.1))
        silent, busy = Answer("Hm.", "Rain.", pause=0.3), Answer("Hm." * 8, "Rain.", piece=1, pause=0.02)
        for display, answer in (("summarized", silent), ("omitted", busy)):
            self.fake.answer(answer)
            asked = {"type": "adaptive", "display": display}
            with self.sdk.messages.stream(model=MODEL, max_tokens=LIMIT, messages=QUESTION, thinking=asked) as stream:
                self.assertEqual(stream.get_final_text(), "Rain.")
            told = [event["type"] for event in self.recorders[-1].answers[-1].events]
            self.assertIn("ping", told[: told.index("content_block_stop")])

    def test_what_was_read_from_the_cache_is_counted_apart(self) -> None:
        first, second = (
            self.sdk.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION).usage for _ in range(2)
        )
        self.assertEqual((first.cache_read_input_tokens, second.input_tokens), (0, 0))
        self.assertEqual(second.cache_read_input_tokens, first.input_tokens)
        with self.sdk.messages.stream(model=MODEL, max_tokens=LIMIT, messages=QUESTION) as stream:
            streamed = stream.get_final_message().usage
        self.assertEqual(streamed.to_dict(), second.to_dict())

    def test_a_new_session_of_the_same_user_finds_the_cache_of_the_one_before(self) -> None:
        """The ids are those of Claude Code, of today and of old."""
        new, old = '{"device_id":"d1","account_uuid":"","session_id":"%s"}', "user_d1_account__session_%s"
        for form in (new, old):
            self.fake.cache = PrefixCache()
            first, second = (
                self.sdk.messages.create(
                    model=MODEL, max_tokens=LIMIT, messages=QUESTION, metadata={"user_id": form % session}
                )
                for session in ("0c1-a", "0c1-b")
            )
            self.assertEqual(second.usage.cache_read_input_tokens, first.usage.input_tokens)
            self.assertIn("d1", self.fake.accepted[-1]["user_id"])

    def test_a_tool_that_is_only_announced_is_offered_once_it_was_found(self) -> None:
        search = {"name": "find_tool", "input_schema": {"type": "object"}}
        announced = [{**tool, "defer_loading": True} for tool in TOOLS]
        use = {"type": "tool_use", "id": "call_0", "name": "find_tool", "input": {}}
        found = {"type": "tool_reference", "tool_name": "get_weather"}
        result = {"type": "tool_result", "tool_use_id": "call_0", "content": [found]}
        messages: list[Json] = [*QUESTION]
        for expected in (["find_tool"], ["find_tool", "get_weather"]):
            self.sdk.messages.create(model=MODEL, max_tokens=LIMIT, messages=messages, tools=[search, *announced])
            self.assertEqual(self.offered(), expected)
            messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]

    def test_a_search_that_is_left_to_the_server_finds_all_tools(self) -> None:
        search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
        announced = [{**tool, "defer_loading": True} for tool in TOOLS]
        self.sdk.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION, tools=[search, *announced])
        self.assertEqual(self.offered(), ["get_location", "get_weather"])

    def offered(self) -> list[str]:
        return sorted(tool["function"]["name"] for tool in self.fake.accepted[-1]["tools"])

    def test_beta_paths_and_headers_are_answered_the_same(self) -> None:
        asked = {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}
        betas = ["context-management-2025-06-27", "interleaved-thinking-2025-05-14"]
        self.fake.answer(Answer(THOUGHT, "Rain."), Answer(THOUGHT, "Rain."))
        plain = self.sdk.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION)
        beta = self.sdk.beta.messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION, betas=betas, **asked)
        self.assertEqual(neutral(beta)["content"], neutral(plain)["content"])

    def test_models_are_listed(self) -> None:
        self.assertEqual([model.id for model in self.sdk.models.list()], ["deepseek-v4-pro", "deepseek-flash"])

    def test_a_key_may_come_either_way(self) -> None:
        for options in ({"api_key": KEY}, {"api_key": None, "auth_token": KEY}):
            assert self.running is not None
            self.client(self.running, **options).messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION)
            self.assertEqual(self.fake.seen[-1].headers["authorization"], f"Bearer {KEY}")


def neutral(message: Any) -> Json:
    """A message without what differs from one time to the next, and without what the package's helper adds."""
    found = message.to_dict()
    found["content"] = [
        {name: value for name, value in block.items() if name != "parsed_output"} for block in found["content"]
    ]
    return {name: value for name, value in found.items() if name not in ("id", "stop_details")}


# Loops of several turns …

# What a client sends back of a turn.
Echo = Callable[[list[Json]], list[Json]]


def kept(blocks: list[Json]) -> list[Json]:
    return blocks


def emptied(blocks: list[Json]) -> list[Json]:
    """The words are gone, the signature is not: as a client has it that was told no thinking."""
    return [{**block, "thinking": ""} if block["type"] == "thinking" else block for block in blocks]


def unsigned(blocks: list[Json]) -> list[Json]:
    return [{**block, "signature": ""} if block["type"] == "thinking" else block for block in blocks]


def stripped(blocks: list[Json]) -> list[Json]:
    return [block for block in blocks if block["type"] != "thinking"]


def signed_by_another(blocks: list[Json]) -> list[Json]:
    """With the signature of another server, whose thinking of this turn nobody here can read."""
    foreign = {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk="}
    return [foreign, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4="}, *stripped(blocks)]


WAYS: dict[str, Echo] = {
    "kept": kept,
    "emptied": emptied,
    "unsigned": unsigned,
    "stripped": stripped,
    "signed by another": signed_by_another,
}

TWO_CITIES = (("get_weather", {"city": "雨"}), ("get_weather", {"city": "Rom"}))
TURNS = (
    Answer(f"First.{THOUGHT}", None, calls(("get_location", {}), turn=0)),
    Answer(f"Second.{THOUGHT}", "Both.", calls(*TWO_CITIES, turn=1)),
    Answer(f"Third.{THOUGHT}", "It rains."),
    Answer(f"Fourth.{THOUGHT}", None, calls(("get_weather", {"city": "Köln"}), turn=3)),
    Answer(f"Fifth.{THOUGHT}", "There as well."),
)


class LoopTest(MessagesCase):
    """A question with two rounds of tools, and another one after it: DeepSeek gets all it thought, to the byte."""

    def setUp(self) -> None:
        super().setUp()
        self.messages: list[Json] = []

    def ask(self, sdk: anthropic.Anthropic, *, stream: bool) -> list[Json]:
        asked: Json = {"model": MODEL, "max_tokens": LIMIT, "messages": self.messages, "tools": TOOLS}
        if not stream:
            return list(sdk.messages.create(**asked).to_dict()["content"])
        with sdk.messages.stream(**asked) as events:
            content = events.get_final_message().content
        return [{**block.to_dict()} for block in content]

    def play(self, client: Callable[[], anthropic.Anthropic], echo: Echo, *, stream: bool) -> None:
        self.fake.forget()
        self.fake.answer(*TURNS)
        self.messages = []
        for number, question in ((0, "The weather here?"), (3, "And in Köln?")):
            self.messages.append({"role": "user", "content": question})
            for turn in TURNS[number:]:
                content = self.ask(client(), stream=stream)
                self.messages.append({"role": "assistant", "content": echo(content)})
                if not turn.calls:
                    break
                self.messages.append({"role": "user", "content": results(content)})

    def assert_nothing_lost(self) -> None:
        self.assertEqual([seen.refusal for seen in self.fake.seen], [None] * len(TURNS))
        for number, payload in enumerate(self.fake.accepted):
            turns = [message for message in payload["messages"] if message["role"] == "assistant"]
            said = TURNS[:number]
            self.assertEqual([turn["reasoning_content"] for turn in turns], [each.reasoning for each in said])
            self.assertEqual([turn["content"] or "" for turn in turns], [each.content or "" for each in said])
            self.assertEqual([called(turn) for turn in turns], [[call.id for call in each.calls] for each in said])

    def test_however_thinking_comes_back_deepseek_gets_all_of_it(self) -> None:
        for name, echo in WAYS.items():
            for stream in (False, True):
                with self.subTest(name, stream=stream):
                    sdk = self.client(self.proxy())
                    self.play(lambda sdk=sdk: sdk, echo, stream=stream)
                    self.assert_nothing_lost()

    def test_what_the_client_keeps_is_enough_for_a_proxy_that_forgot_everything(self) -> None:
        for name in ("kept", "emptied", "unsigned"):
            for stream in (False, True):
                with self.subTest(name, stream=stream):
                    self.client(self.proxy()).messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION)
                    self.play(lambda: self.client(self.proxy_without_a_memory()), WAYS[name], stream=stream)
                    self.assert_nothing_lost()

    def test_results_in_any_order_are_told_in_the_order_of_the_calls(self) -> None:
        sdk = self.client(self.proxy())
        self.play(lambda: sdk, kept, stream=False)
        told = [message for message in self.fake.accepted[-1]["messages"] if message["role"] == "tool"]
        self.assertEqual([each["tool_call_id"] for each in told], ["call_00", "call_10", "call_11", "call_30"])
        self.assertTrue(all(each["tool_call_id"] in each["content"] for each in told), told)

    def test_the_packages_own_tool_loop_comes_to_its_end(self) -> None:
        """It would leave the chat to a server that keeps threads; told that this one does not, it sends all of it."""
        asked = []

        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """Weather."""
            asked.append(city)
            return "rain"

        sdk = self.client(self.proxy())
        for stream in (False, True):
            with self.subTest(stream=stream):
                self.fake.forget()
                asked.clear()
                self.fake.answer(*TURNS[1:3])
                runner = sdk.beta.messages.tool_runner(
                    model=MODEL, max_tokens=LIMIT, messages=QUESTION, tools=[get_weather], stream=stream
                )
                last = [each.get_final_message() if stream else each for each in runner][-1]
                self.assertEqual(last.content[-1].text, "It rains.")
                self.assertEqual(sorted(asked), ["Rom", "雨"])
                self.assert_upstream_saw(str(TURNS[1].reasoning))


def results(content: list[Json]) -> list[Json]:
    """What the tools said: the last call's result first, and a word of the user after them."""
    found = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": f"{block['id']}: rain"}
        for block in reversed(content)
        if block["type"] == "tool_use"
    ]
    return [*found, {"type": "text", "text": "Go on."}]


def called(message: Json) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


# What goes wrong …


class FailureTest(MessagesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.proxy(max_request_body_bytes=100_000))

    def ask(self, *, stream: bool = False, **asked: Any) -> Any:
        body = {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION, **asked}
        found = self.sdk.messages.create(**body, stream=stream)
        return list(found) if stream else found

    def assert_told(self, error: type[anthropic.APIStatusError], kind: str, words: str, *steps: Any) -> Any:
        """Whole and streamed: the package's own error, of Anthropic's type, with words a person can read."""
        for stream in (False, True):
            self.fake.answer(*steps)
            with self.subTest(stream=stream), self.assertRaises(error) as caught:
                self.ask(stream=stream)
            self.assertIs(type(caught.exception), error)
            self.assertEqual(caught.exception.type, kind)
            self.assertIn(words, caught.exception.api_message)
            self.assertRegex(caught.exception.request_id, r"^req_\w+$")
        return caught.exception

    def test_a_wrong_key_is_an_authentication_error_in_deepseeks_words(self) -> None:
        assert self.running is not None
        self.sdk = self.client(self.running, key="sk-wrong")
        told = self.assert_told(anthropic.AuthenticationError, "authentication_error", "Authentication Fails")
        self.assertEqual(told.response.headers["x-should-retry"], "false")

    def test_no_key_is_an_authentication_error(self) -> None:
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            self.ask(extra_headers={"X-Api-Key": "", "Authorization": "Basic abc"})
        self.assertEqual(caught.exception.type, "authentication_error")
        self.assertEqual(self.fake.seen, [])

    def test_what_cannot_be_answered_is_a_bad_request_that_names_its_field(self) -> None:
        wrong: dict[str, Json] = {
            "max_tokens": {"max_tokens": None},
            "messages": {"messages": "Rain?"},
            "thinking.type": {"thinking": {"type": "deep"}},
            "tools": {"tools": "all"},
        }
        for name, asked in wrong.items():
            with self.subTest(name), self.assertRaises(anthropic.BadRequestError) as caught:
                self.ask(extra_body=asked)
            self.assertEqual(caught.exception.type, "invalid_request_error")
            self.assertIn(name, caught.exception.api_message)
        self.assertEqual(self.fake.seen, [])

    def test_a_thread_is_refused_by_the_name_that_clients_know(self) -> None:
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.sdk.beta.messages.thread(model=MODEL, max_tokens=LIMIT).send("Rain?")
        self.assertEqual(caught.exception.error_code, "thread_unsupported_request")
        self.assertIn("Send all messages", caught.exception.api_message)

    def test_what_deepseek_refuses_is_a_bad_request_in_its_words(self) -> None:
        refusal = Failure(400, "Model Not Exist", "invalid_request_error", "invalid_request_error")
        self.assert_told(anthropic.BadRequestError, "invalid_request_error", "Model Not Exist", refusal)

    def test_a_chat_that_is_too_long_is_told_in_the_words_clients_know(self) -> None:
        words = "This model's maximum context length is 1048576 tokens. However, you requested 1200000 tokens."
        self.assert_told(
            anthropic.BadRequestError,
            "invalid_request_error",
            "prompt is too long: 1200000 tokens > 1048576 maximum",
            Failure(400, words, "invalid_request_error", "invalid_request_error"),
        )

    def test_no_balance_is_a_billing_error(self) -> None:
        self.assert_told(anthropic.APIStatusError, "billing_error", "platform.deepseek.com", Failure(402, "No balance"))

    def test_a_body_beyond_the_limit_is_too_large(self) -> None:
        with self.assertRaises(anthropic.APIStatusError) as caught:
            self.ask(messages=[{"role": "user", "content": "rain " * 40_000}])
        self.assertEqual((caught.exception.status_code, caught.exception.type), (413, "request_too_large"))

    def test_too_many_requests_are_a_rate_limit_with_a_time_to_wait(self) -> None:
        told = self.assert_told(anthropic.RateLimitError, "rate_limit_error", "Too many", Failure(429, "Too many."))
        self.assertRegex(told.response.headers["retry-after"], r"^[0-9]+$")

    def test_a_busy_deepseek_is_overloaded(self) -> None:
        told = self.assert_told(
            anthropic.OverloadedError, "overloaded_error", "Try again", Failure(503, headers=(("Retry-After", "0"),))
        )
        self.assertNotIn("x-should-retry", told.response.headers)

    def test_a_deepseek_out_of_order_is_a_server_error(self) -> None:
        self.assert_told(anthropic.InternalServerError, "api_error", "out of order", Failure(500, "Oops"))

    def test_an_unreachable_deepseek_is_a_server_error(self) -> None:
        self.fake.close()
        self.assert_told(anthropic.InternalServerError, "api_error", "--base-url")

    def assert_breaks(self, answer: Answer, kind: str, words: str) -> None:
        """Streamed, after a beginning that arrived; the helper tells it as well."""
        self.fake.answer(answer, answer)
        for stream in (self.sdk.messages.create, self.sdk.messages.stream):
            with self.subTest(stream.__name__), self.assertRaises(anthropic.APIStatusError) as caught:
                body = {"model": MODEL, "max_tokens": LIMIT, "messages": QUESTION}
                if stream is self.sdk.messages.create:
                    list(stream(**body, stream=True))
                else:
                    with stream(**body) as events:
                        events.get_final_message()
            self.assertEqual(caught.exception.type, kind)
            self.assertIn(words, caught.exception.api_message)

    def test_a_stream_that_breaks_off_raises(self) -> None:
        self.assert_breaks(Answer(THOUGHT, "A long answer that never ends.", cut_after=5), "api_error", "cut off")

    def test_a_stream_that_breaks_off_amid_a_call_raises(self) -> None:
        broken = Answer(None, "", calls(("get_weather", {"city": "b" * 80})), cut_after=4)
        self.assert_breaks(broken, "api_error", "cut off")

    def test_an_answer_that_deepseek_gives_up_is_overloaded(self) -> None:
        given_up = Answer(THOUGHT, "It is", finish_reason="insufficient_system_resource")
        self.assert_breaks(given_up, "overloaded_error", "capacity")

    def test_a_whole_answer_that_breaks_off_is_a_server_error(self) -> None:
        self.fake.answer(Answer(THOUGHT, "A long answer that never ends.", cut_after=5))
        with self.assertRaises(anthropic.InternalServerError):
            self.ask()

    def test_lost_reasoning_is_a_conflict_when_the_strategy_is_reject(self) -> None:
        self.sdk = self.client(self.proxy(missing_reasoning_strategy="reject"))
        use = {"type": "tool_use", "id": "call_1", "name": WEATHER["name"], "input": {"city": "Rom"}}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
        messages = [*QUESTION, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        with self.assertRaises(anthropic.ConflictError) as caught:
            self.ask(messages=messages, tools=TOOLS)
        self.assertIn("reasoning", caught.exception.api_message)
        self.assertEqual(self.fake.seen, [])


if __name__ == "__main__":
    unittest.main()
