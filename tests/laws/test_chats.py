"""The law of this project over generated answers: what we encode, echoed as a client echoes it, is found again.

For streaming and plain, display on (both forms) and off, with and without a notice. Seeded; no socket, no store.
"""

import contextlib
import http.client
import json
import random
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.endpoint import write_events
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Batches, Message, Reply
from deepseek_cursor_proxy.deepseek import chat_api, chat_stream
from deepseek_cursor_proxy.http1 import sse
from deepseek_cursor_proxy.protocols.chat_writer import ChunkWriter, CompletionWriter
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.reasoning import identity, thinking_blocks
from deepseek_cursor_proxy.reasoning.restore import FoundTurns, prepare
from deepseek_cursor_proxy.reasoning.thinking_blocks import NOTICE, show_reasoning
from tests.fake_deepseek import FakeDeepSeek
from tests.fake_deepseek.completion import Answer, Call, Completion, PrefixCache
from tests.support.generated_chats import Chat, World
from tests.support.harness import SocketTestCase, chat_text
from tests.support.histories import TOOLS, tool_calls
from tests.support.laws import check_law
from tests.support.width import width

ME = identity.namespace("https://api.deepseek.com", "sk-me")
CONFIG = ProxyConfig()
FORMS = (thinking_blocks.COLLAPSIBLE, thinking_blocks.PLAIN, None)
WORDS = (
    "think", " ", "\n", "\n\n", "<details>", "</details>", "<think>", "</think>", "\\", "<", "</", "```", "é", "思",
    "<summary>Thinking</summary>", "\n</details>\n\n", NOTICE, "data: [DONE]\n\n", "\r\n", '"', "\u2028", "\U0001f600",
)  # fmt: skip


def words(rng: random.Random, most: int) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def generated(rng: random.Random) -> Answer:
    calls = tuple(
        Call(f"call_{rng.randrange(10**6)}", "read_file", json.dumps({"path": words(rng, 4), "n": rng.random()}))
        for _ in range(rng.choice((0, 0, 1, 2)))
    )
    # Content that begins with a block of its own is the model's business; see test_restore.
    content = words(rng, 6).lstrip("<") or rng.choice((None, "x"))
    if content is not None and content.strip() and not thinking_blocks.strip_display(content):
        # Nothing but a notice or an open block, which leave the text.
        content = "x" + content
    # An answer that says nothing at all leaves the history; see test_tool_history.
    reasoning = words(rng, 12).strip(" ") or ("" if calls or (content or "").strip() else "hm")
    return Answer(reasoning=reasoning, content=content, calls=calls, piece=rng.choice((1, 3, 16)))


def chunks(answer: Answer, stream: bool) -> Batches:
    """The answer as DeepSeek sends it, read by the package's own parser."""
    payload = {"model": "deepseek-v4-pro", "messages": [], "stream": stream, "thinking": {"type": "enabled"}}
    completion = Completion(answer, payload, PrefixCache(), "1", 0)
    if not stream:
        yield list(chat_stream.read_completion(json.loads(completion.body())))
        return
    for event in sse.Parser().feed(b"".join(completion.events())):
        if isinstance(event, sse.Event) and event.data != "[DONE]":
            yield [chat_api.chunk_delta(json.loads(event.data))]


class TestEcho(unittest.TestCase):
    def test_an_encoded_answer_echoed_by_a_client_is_found_again(self) -> None:
        check_law(range(width(30, 60)), self._check_chat)

    def _check_chat(self, seed: int) -> None:
        rng = random.Random(seed)
        stream, form, notice = rng.random() < 0.5, rng.choice(FORMS), rng.choice(("", NOTICE))
        history: list[dict[str, Any]] = [{"role": "user", "content": words(rng, 5)}]
        found: dict[bytes, list[str]] = {}
        thoughts: list[str] = []
        for _ in range(3):
            answer = generated(rng)
            request = parse({"messages": history, "tools": TOOLS, "stream": stream}, CONFIG)
            said = _record(request.messages, answer, stream, found)
            thoughts.append(said.reasoning or "")
            echoed = _echo(request, answer, stream, form, notice)
            history += [echoed, *_results(answer), {"role": "user", "content": words(rng, 5)}]
        self._assert_found(history, found, thoughts)

    def _assert_found(self, history: list[dict[str, Any]], found: dict[bytes, list[str]], thoughts: list[str]) -> None:
        request = parse({"messages": history, "tools": TOOLS}, CONFIG)
        prepared = prepare(request, FoundTurns(request, identity.History(ME, request.messages), found), "reject")
        sent = [message for message in prepared.request.messages if message.role == "assistant"]
        self.assertEqual([thought or " " for thought in thoughts], [message.reasoning for message in sent], history)
        for message in sent:
            self.assertIsNone(thinking_blocks.block_at(str(message.content)))


def _record(before: tuple[Message, ...], answer: Answer, stream: bool, found: dict[bytes, list[str]]) -> Message:
    reply = Reply()
    for batch in chunks(answer, stream):
        for delta in batch:
            reply.add(delta)  # type: ignore[arg-type]
    message = reply.message()
    for key in identity.History(ME, before).answer_keys(message).record_keys():
        found[key] = [message.reasoning or ""]
    return message


def _echo(request: Any, answer: Answer, stream: bool, form: thinking_blocks.Form | None, notice: str) -> dict[str, Any]:
    """What Cursor sends back: the text it showed and the calls, without reasoning_content."""
    shown = show_reasoning(chunks(answer, stream), form, lambda choice: notice)
    if stream:
        events = sse.Parser().feed(b"".join(write_events(mock.Mock(), shown, ChunkWriter(request, 0))))
        datas = [event.data for event in events if isinstance(event, sse.Event) and event.data != "[DONE]"]
        content = "".join(json.loads(data)["choices"][0]["delta"].get("content") or "" for data in datas)
    else:
        writer = CompletionWriter(request)
        for batch in shown:
            writer.write(batch)
        content = json.loads(writer.end())["choices"][0]["message"]["content"]
    calls = tool_calls(answer.calls)
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def _results(answer: Answer) -> Iterator[dict[str, Any]]:
    for call in answer.calls:
        yield {"role": "tool", "tool_call_id": call.id, "content": "ok"}


class TestGeneratedChats(unittest.TestCase):
    """Exactness, no foreign reasoning, nothing lost, a stable prefix, histories that carry themselves."""

    def test_the_five_laws_hold_on_every_request_of_generated_chats(self) -> None:
        check_law(range(width(30, 120)), lambda seed: _steps(World(seed), 14))

    def test_a_proxy_with_an_empty_store_restores_reasoning_from_displayed_blocks(self) -> None:
        check_law(range(width(20, 60)), lambda seed: _steps(World(seed, forgets=True), 10))


def _steps(world: World, count: int) -> Iterator[Chat]:
    for _ in range(count):
        try:
            yield world.step()
        except AssertionError as error:
            chats = json.dumps([chat.messages() for chat in world.chats], indent=1)
            raise AssertionError(f"{error}\n{chats[:6000]}") from None


class TestChatsOverSockets(SocketTestCase):
    def test_the_five_laws_hold_on_sixteen_interleaved_chats(self) -> None:
        for form, settings in ((thinking_blocks.COLLAPSIBLE, {}), (None, {"display_reasoning": False})):
            proxy = self.proxy(**settings)
            with contextlib.closing(http.client.HTTPConnection(*proxy.address)) as connection:
                world = SocketWorld(7, self.fake, connection, form)
                for _ in range(width(16, 120)):
                    world.step()


class SocketWorld(World):
    """The same world with a real proxy in the middle; what the client echoes is what the proxy showed it."""

    def __init__(self, seed: int, fake: FakeDeepSeek, connection: http.client.HTTPConnection, form: Any) -> None:
        super().__init__(seed, chats=16, forms=(form,))
        self._fake = fake
        self._connection = connection
        self._shown = ""

    def exchange(self, chat: Chat, said: Message) -> dict[str, Any]:
        return self.ask(self._fake, chat, said)

    def ask(self, fake: FakeDeepSeek, chat: Chat, said: Message, **fields: Any) -> dict[str, Any]:
        calls = tuple(Call(call.id, call.name, call.arguments) for call in said.tool_calls)
        fake.answer(Answer(reasoning=said.reasoning, content=str(said.content), calls=calls))
        body = {"messages": chat.messages(), "tools": TOOLS, "stream": self.rng.random() < 0.5, **fields}
        headers = {"Authorization": "Bearer sk-test"}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        reply = self._connection.getresponse()
        data = reply.read()
        assert reply.status == 200, data
        self._shown = chat_text(data)
        return fake.accepted[-1]

    def display(self, chat: Chat, answer: Message) -> str:
        return self._shown
