"""The demo: a scripted Cursor asks a fake DeepSeek, first directly, then through the proxy. It needs no key.

Each request is recorded at both ends (what Cursor sent, what DeepSeek received, what Cursor got) and judged by the
reasoning that the fake DeepSeek remembers, never by what the proxy says about itself.
Loopback only, no file; everything that is started has ended before `run` returns.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TextIO

from deepseek_cursor_proxy.cli.demo.cursor import WEATHER_TOOLS, ClientAnswer, CursorClient
from deepseek_cursor_proxy.cli.demo.small_deepseek import ReceivedRequest, SmallDeepSeek, local_proxy
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.reasoning.thinking_blocks import block_at

# The first takes two tools to answer; the second shows that finished turns are carried along as well.
_QUESTIONS = ("What is the weather like here?", "Do I need an umbrella?")
_GREEN, _RED, _BOLD, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


def run(program: str, out: TextIO | None = None) -> int:
    """Play the chat and explain it; 0 only if every request was accepted with every reasoning exactly as it was."""
    page = _Page(out or sys.stdout)
    with SmallDeepSeek() as deepseek:
        page.show_problem(_play(deepseek, deepseek.url)[-1])
    # Without retries: every request shown is one that Cursor sent.
    with (
        SmallDeepSeek() as deepseek,
        local_proxy(ProxyConfig(upstream_base_url=deepseek.url, retry_budget=0)) as url,
    ):
        requests = _play(deepseek, url)
    for number, request in enumerate(requests, 1):
        page.show(number, request)
    page.show_result(requests, program)
    return 0 if all(request.is_good for request in requests) else 1


@dataclass(frozen=True)
class _Request:
    """One request at both ends; `thoughts` are the reasonings of the turns before it, as DeepSeek had them."""

    sent: Sequence[Mapping[str, Any]]
    received: Sequence[ReceivedRequest]
    answer: ClientAnswer
    thoughts: Sequence[str | None]

    @property
    def is_accepted(self) -> bool:
        """Whether DeepSeek took it at the first try, and the answer came through whole."""
        return [seen.status for seen in self.received] == [200] and self.answer.is_whole

    @property
    def turns(self) -> list[tuple[str | None, str | None]]:
        """For every turn before this request, its reasoning and the one that reached DeepSeek."""
        messages = self.received[-1].payload.get("messages", ()) if self.received else ()
        found = [message.get("reasoning_content") for message in messages if message["role"] == "assistant"]
        return list(zip_longest(self.thoughts, found))

    @property
    def is_good(self) -> bool:
        return self.is_accepted and all(real == found for real, found in self.turns)


class _RecordedCursor(CursorClient):
    def __init__(self, base_url: str, deepseek: SmallDeepSeek) -> None:
        super().__init__(base_url, tools=WEATHER_TOOLS)
        self.requests: list[_Request] = []
        self._deepseek = deepseek

    def post(self, messages: Sequence[Mapping[str, Any]] | None = None) -> ClientAnswer:
        sent = list(self.messages if messages is None else messages)
        before, thoughts = len(self._deepseek.seen), list(self._deepseek.thoughts)
        answer = super().post(messages)
        self.requests.append(_Request(sent, self._deepseek.seen[before:], answer, thoughts))
        return answer


def _play(deepseek: SmallDeepSeek, base_url: str) -> list[_Request]:
    """All questions, or as far as the chat gets."""
    with closing(_RecordedCursor(base_url, deepseek)) as cursor:
        for question in _QUESTIONS:
            if not cursor.ask(question).final.is_whole:
                break
        return cursor.requests


class _Page:
    """Writes the story, in colour where a person reads it on a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_colourful = out.isatty()

    def show_problem(self, refused: _Request) -> None:
        self._line(f"Without the proxy, request {len(refused.thoughts) + 1} of a Cursor chat with tools fails:", _BOLD)
        self._line(f"   HTTP {refused.answer.status}  {(refused.answer.error or {}).get('message')}", _RED)
        self._line("\nThrough the proxy, the same chat:", _BOLD)

    def show(self, number: int, request: _Request) -> None:
        self._line(f"\n{number}. Cursor sends {_news(request.sent[-1])}", _BOLD)
        echoed = enumerate((message for message in request.sent if message["role"] == "assistant"), 1)
        stripped = ", ".join(str(turn) for turn, message in echoed if "reasoning_content" not in message)
        self._fact("Cursor stripped", f"reasoning_content of turn {stripped}" if stripped else "nothing yet")
        for turn, (real, found) in enumerate(request.turns, 1):
            words = "nothing" if found is None else f'"{found[:44]}…"'
            verdict = "exact" if found == real else "NOT what DeepSeek had thought"
            label = "the proxy put back" if turn == 1 else ""
            self._fact(label, f"turn {turn}: {words}  {verdict}", "" if found == real else _RED)
        self._fact("DeepSeek", *(("accepted it", _GREEN) if request.is_accepted else (_refusal(request), _RED)))
        for label, text in _shown(request.answer):
            self._fact(label, text)

    def show_result(self, requests: Sequence[_Request], program: str) -> None:
        accepted = sum(request.is_accepted for request in requests)
        exact = [real == found for request in requests for real, found in request.turns]
        is_good = all(request.is_good for request in requests)
        summary = f"{accepted} of {len(requests)} requests accepted, {sum(exact)} of {len(exact)} reasonings put back"
        self._line(f"\n{summary} exactly.", _GREEN if is_good else _RED)
        if is_good:
            self._line(f"Now with your own key: {program}")

    def _fact(self, label: str, text: str, colour: str = "") -> None:
        self._line(f"   {label:<20}{text}", colour)

    def _line(self, text: str, colour: str = "") -> None:
        print(f"{colour}{text}{_PLAIN}" if colour and self._is_colourful else text, file=self._out)


def _news(message: Mapping[str, Any]) -> str:
    return f"the result of a tool: {message['content']}" if message["role"] == "tool" else f'"{message["content"]}"'


def _refusal(request: _Request) -> str:
    tries = " and ".join(str(seen.status) for seen in request.received) or "was not asked"
    return f"{tries}; Cursor got {request.answer.status} {(request.answer.error or {}).get('message', '')}"


def _shown(answer: ClientAnswer) -> Iterator[tuple[str, str]]:
    """What is on Cursor's screen: the thinking that folds, the text, the tools it is asked to run."""
    block = block_at(answer.content)
    if block is not None:
        yield "Cursor shows", f"[Thinking] {block.reasoning}"
    if text := answer.content[block.end if block else 0 :]:
        yield "", text
    for call in answer.calls:
        yield "", f"-> runs {call.name}({call.arguments})"
