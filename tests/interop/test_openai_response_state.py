"""Responses that are kept, chained, followed and made in the background, with the official `openai` package.

Whatever a test asks, every byte that comes back is checked against the package's own types when the test ends (see
typed).
"""

from collections.abc import Callable
from typing import Any

import openai

from tests.fake_deepseek import Answer, Failure
from tests.interop.command_line import MODEL
from tests.interop.typed import THOUGHT, Json
from tests.interop.typed_responses import PATCH_TEXT, SEALED, TOOLS, ResponsesCase, calls
from tests.support.harness import PATIENCE

QUESTION = {"role": "user", "content": "What is the weather, and is the list right?"}
FOLLOW_UP = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And tomorrow?"}]}
THOUGHTS = [f"Step {number}.{THOUGHT}" for number in range(5)]
# Parallel calls of a function and into a namespace, text and a call of a custom tool, an answer, and a follow-up.
SCRIPT = (
    Answer(THOUGHTS[0], None, calls(("get_weather", {"city": "Rom"}), ("agents__spawn", {"city": "雨"}))),
    Answer(THOUGHTS[1], "Now the list.", calls(("apply_patch", {"input": PATCH_TEXT}), turn=1)),
    Answer(THOUGHTS[2], "Rain – and the list is right."),
    Answer(THOUGHTS[3], None, calls(("get_weather", {"city": "Oslo"}), turn=3)),
    Answer(THOUGHTS[4], "Snow."),
)
Echo = Callable[[Any], Any]


def results(response: Any) -> list[Json]:
    """What the tools say to the calls of a response."""
    outputs = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    return [
        {"type": outputs[item.type], "call_id": item.call_id, "output": f"{item.name} says 雨"}
        for item in response.output
        if item.type in outputs
    ]


def sealed_only(item: Any) -> Json:
    """An item as opencode (1.18) sends it back: no ids, and of reasoning nothing but the envelope."""
    kept = {name: value for name, value in item.to_dict().items() if name not in ("id", "status")}
    return {**kept, "content": []} if item.type == "reasoning" else kept


class ToolLoopTest(ResponsesCase):
    def setUp(self) -> None:
        super().setUp()
        self.fake.answer(*SCRIPT)

    def ask(self, items: list[Any], **rest: Any) -> Any:
        return self.client(self.url).responses.create(model=MODEL, input=items, tools=TOOLS, **rest)

    def ask_streamed(self, items: list[Any], **rest: Any) -> Any:
        sdk = self.client(self.url)
        *_, last = sdk.responses.create(model=MODEL, input=items, tools=TOOLS, stream=True, **rest)
        return last.response

    def assert_loop_is_whole(self, last: Any) -> None:
        self.assertEqual(last.output_text, "Snow.")
        self.assertEqual(len(self.fake.accepted), len(SCRIPT))
        self.assert_upstream_saw(*THOUGHTS[:4])
        messages = self.fake.accepted[-1]["messages"]
        turns = [message for message in messages if message["role"] == "assistant"]
        self.assertEqual([turn["content"] or "" for turn in turns], [said.content or "" for said in SCRIPT[:4]])
        for turn, said in zip(turns, SCRIPT, strict=False):
            made = [(call["id"], call["function"]["name"]) for call in turn.get("tool_calls") or ()]
            self.assertEqual(made, [(call.id, call.name) for call in said.calls])
        before = self.fake.accepted[-2]["messages"]
        self.assertEqual(messages[: len(before)], before)

    def chained(self, ask: Callable[..., Any]) -> Any:
        response = ask([QUESTION])
        for _ in SCRIPT[1:]:
            response = ask(results(response) or [FOLLOW_UP], previous_response_id=response.id)
        return response

    def echoed(self, ask: Callable[..., Any], echo: Echo, *, forgets: bool = False) -> Any:
        items: list[Any] = [QUESTION]
        for _ in SCRIPT[1:]:
            response = ask(items, store=False, include=[SEALED])
            items += [*map(echo, response.output), *(results(response) or [FOLLOW_UP])]
            if forgets:
                self.start_proxy("secret")
        return ask(items, store=False, include=[SEALED])

    def test_a_chain_of_whole_answers_loses_nothing(self) -> None:
        self.start_proxy()
        self.assert_loop_is_whole(self.chained(self.ask))

    def test_a_chain_of_streams_loses_nothing(self) -> None:
        self.start_proxy()
        self.assert_loop_is_whole(self.chained(self.ask_streamed))

    def test_a_chain_made_in_the_background_loses_nothing(self) -> None:
        self.start_proxy()
        self.assert_loop_is_whole(self.chained(lambda items, **rest: self.ask_streamed(items, background=True, **rest)))

    def test_a_chain_continues_when_its_links_are_deleted_and_the_proxy_restarts(self) -> None:
        def ask(items: list[Any], **rest: Any) -> Any:
            self.start_proxy("all")
            response = self.ask(items, **rest)
            if "previous_response_id" in rest:
                self.client(self.url).responses.delete(rest["previous_response_id"])
            return response

        self.assert_loop_is_whole(self.chained(ask))

    def test_an_echoed_history_loses_nothing(self) -> None:
        """`input += response.output`, as the package's own documentation has it."""
        self.start_proxy()
        self.assert_loop_is_whole(self.echoed(self.ask, lambda item: item))

    def test_an_echoed_history_loses_nothing_when_the_database_is_deleted_after_every_answer(self) -> None:
        for name, ask in {"whole": self.ask, "streamed": self.ask_streamed}.items():
            with self.subTest(name):
                self.fake.forget()
                self.fake.answer(*SCRIPT)
                self.start_proxy()
                self.assert_loop_is_whole(self.echoed(ask, sealed_only, forgets=True))


class StoredTest(ResponsesCase):
    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.start_proxy(background_workers=1))

    def test_plain_shapes_of_input_are_listed_in_full(self) -> None:
        items = [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "What do you see?"},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "somebody else's"},
            {"type": "function_call", "call_id": "call_0", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_0", "output": [{"type": "input_text", "text": "Rain."}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        ]
        for given in (items, "Hello?"):
            response = self.sdk.responses.create(model=MODEL, input=given)
            found = list(self.sdk.responses.input_items.list(response.id, order="asc"))
            wanted = [item.get("type", "message") for item in items] if given is items else ["message"]
            self.assertEqual([item.type for item in found], wanted)


class BackgroundTest(ResponsesCase):
    """One worker, so that a second response has to wait for the first."""

    def setUp(self) -> None:
        super().setUp()
        self.sdk = self.client(self.start_proxy(background_workers=1, background_queue=1))
        # From here on the key is known: one that is not may have one job only.
        self.sdk.responses.create(model=MODEL, input="Hello?")
        self.fake.forget()

    def begin(self, answer: Answer | Failure | None = None, **rest: Any) -> Any:
        if answer is not None:
            self.fake.answer(answer)
        return self.sdk.responses.create(model=MODEL, input="Rain?", background=True, **rest)

    def status(self, response: Any) -> str:
        return self.sdk.responses.retrieve(response.id).status

    def replayed(self, response: Any, **rest: Any) -> list[Any]:
        """All events of a response; they end when it does, so this waits for it."""
        return list(self.sdk.responses.retrieve(response.id, stream=True, **rest))

    def begin_stalled(self) -> Any:
        """One that DeepSeek has begun to answer, and does not go on with."""
        response = self.begin(Answer(THOUGHT, "It is raining in Rome.", stall_after=6))
        self.fake.stalls.get(timeout=PATIENCE)
        return response

    def test_it_is_queued_in_progress_and_completed(self) -> None:
        running, waiting = self.begin_stalled(), self.begin(Answer(THOUGHT, "Sun."))
        self.assertEqual([running.status, waiting.status], ["queued", "queued"])
        self.assertEqual([self.status(running), self.status(waiting)], ["in_progress", "queued"])
        with self.assertRaises(openai.RateLimitError) as caught:
            self.begin()
        self.assertTrue(caught.exception.response.headers["retry-after"].isdigit())
        self.fake.release.set()
        for response, text in ((running, "It is raining in Rome."), (waiting, "Sun.")):
            last = self.replayed(response)[-1].response
            self.assertEqual((last.status, last.output_text), ("completed", text))
            self.assertEqual(self.sdk.responses.retrieve(response.id).to_dict(), last.to_dict())

    def test_its_events_are_the_same_streamed_followed_and_replayed_from_anywhere(self) -> None:
        streamed = list(self.begin(Answer(THOUGHT, "Rain."), stream=True))
        response = streamed[-1].response
        self.assertEqual(
            [event.type for event in streamed[:3]], ["response.created", "response.queued", "response.in_progress"]
        )
        for number in range(-1, len(streamed)):
            rest = {} if number < 0 else {"starting_after": number}
            if number < len(streamed) - 1:
                self.assertEqual(self.replayed(response, **rest), streamed[number + 1 :])
        with self.sdk.responses.stream(response_id=response.id) as stream:
            self.assertEqual(stream.get_final_response().output_text, "Rain.")


class CompactionTest(ResponsesCase):
    def test_a_compacted_chat_continues_where_the_database_is_lost(self) -> None:
        sdk = self.client(self.start_proxy())
        chat: list[Any] = [{"role": "user", "content": "What is the weather?"}]
        chat += sdk.responses.create(model=MODEL, input=chat).output
        self.fake.answer(Answer(None, "It rains."))
        compacted = sdk.responses.compact(model=MODEL, input=chat)
        self.assertEqual(compacted.object, "response.compaction")
        self.assertEqual([item.type for item in compacted.output], ["message", "compaction"])
        later = self.client(self.start_proxy("secret"))
        # The package warns of what its own types do not allow: messages of users in an output.
        kept: list[Any] = [item.to_dict(warnings=False) for item in compacted.output]
        later.responses.create(model=MODEL, input=[*kept, {"role": "user", "content": "And now?"}])
        sent = self.fake.accepted[-1]["messages"]
        self.assertEqual([message["role"] for message in sent], ["user", "user", "user"])
        self.assertIn("It rains.", sent[1]["content"])

    def test_tokens_are_counted(self) -> None:
        sdk = self.client(self.start_proxy())
        found = sdk.responses.input_tokens.count(model=MODEL, input="word " * 100, instructions="Be short.")
        self.assertGreater(found.input_tokens, 80)
