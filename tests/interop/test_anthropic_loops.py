"""Loops of several turns with the official `anthropic` package: whatever becomes of the thinking, nothing is lost."""

from collections.abc import Callable

import anthropic

from tests.fake_deepseek import Answer
from tests.interop.command_line import MODEL
from tests.interop.typed import THOUGHT, Json
from tests.interop.typed_messages import LIMIT, QUESTION, TOOLS, MessagesCase, calls

# What a client sends back of a turn.
Echo = Callable[[list[Json]], list[Json]]


def kept(blocks: list[Json]) -> list[Json]:
    return blocks


def emptied(blocks: list[Json]) -> list[Json]:
    """The words are gone, the signature is not: as a client has it that was told no thinking."""
    return [{**block, "thinking": ""} if block["type"] == "thinking" else block for block in blocks]


def stripped(blocks: list[Json]) -> list[Json]:
    return [block for block in blocks if block["type"] != "thinking"]


WAYS: dict[str, Echo] = {"kept": kept, "emptied": emptied, "stripped": stripped}

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
        request: Json = {"model": MODEL, "max_tokens": LIMIT, "messages": self.messages, "tools": TOOLS}
        if not stream:
            return list(sdk.messages.create(**request).to_dict()["content"])
        with sdk.messages.stream(**request) as events:
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
                    sdk = self.client(self.start_proxy())
                    self.play(lambda sdk=sdk: sdk, echo, stream=stream)
                    self.assert_nothing_lost()

    def test_what_the_client_keeps_is_enough_for_a_proxy_that_forgot_everything(self) -> None:
        for name in ("kept", "emptied"):
            for stream in (False, True):
                with self.subTest(name, stream=stream):
                    self.client(self.start_proxy()).messages.create(model=MODEL, max_tokens=LIMIT, messages=QUESTION)
                    self.play(lambda: self.client(self.start_proxy("secret")), WAYS[name], stream=stream)
                    self.assert_nothing_lost()

    def test_the_packages_own_tool_loop_comes_to_its_end(self) -> None:
        """It would leave the chat to a server that keeps threads; told that this one does not, it sends all of it."""
        asked = []

        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """Weather."""
            asked.append(city)
            return "rain"

        sdk = self.client(self.start_proxy())
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
