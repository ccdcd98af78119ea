"""No secret leaves the process: its output, its files and its responses after a minute of hostile requests.

One run is quiet, one verbose, both write traces. Clients put the key, terminal escapes and line breaks wherever HTTP
and JSON let them, and the fake DeepSeek quotes the key it was called with. Every test looks at the same output.
"""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import tempfile
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek, Raw
from tests.support.harness import PATIENCE, RawReply, read_reply
from tests.support.program import Process, ServeTest, address
from tests.support.systems import ROOT

KEY = "sk-Kept0123456789abcdefABCDEF"
PROMPT = "a prompt that is nobody's business"
# A command for the terminal, a bell, and what a reader of the log would take for the proxy's own words.
EVIL = "\x1b[31m\x07\n┌ #999 forged · stream\r\nforged line\u2028forged line\x85forged line"
# Codes of refusals that quote a client's own malformed header to it, and to nobody else.
OWN_BYTES = (b'"invalid_http"', b'"unsupported_content_encoding"')
TOOL = {"type": "function", "function": {"name": "a"}}


@dataclass(frozen=True)
class Remains:
    """What is left of a run."""

    log: str
    files: dict[str, bytes]
    replies: list[RawReply]


class _Stranger:
    """Sends bytes to a proxy, one connection each, and keeps what comes back."""

    def __init__(self, where: tuple[str, int]) -> None:
        self._where = where
        self.replies: list[RawReply] = []

    def send(self, data: str) -> None:
        with socket.create_connection(self._where, PATIENCE) as sock:
            sock.sendall(data.encode())
            self.replies.append(read_reply(sock))

    def chat(self, body: Any = None, path: str = "/v1/chat/completions", method: str = "POST", **fields: Any) -> None:
        sent = body if isinstance(body, str) else json.dumps(body or {**_asking(), **fields})
        self.send(f"{method} {path} HTTP/1.1\r\n{_head(len(sent.encode()))}{sent}")


def _asking(text: str = PROMPT) -> dict[str, Any]:
    return {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": text}]}


def _head(length: object, *more: str) -> str:
    lines = ("Host: x", f"Authorization: Bearer {KEY}", f"Content-Length: {length}", *more)
    return "\r\n".join([*lines, "", ""])


def _provoke(stranger: _Stranger, fake: FakeDeepSeek) -> None:
    stranger.chat()
    stranger.chat(stream=True)
    _keys_in_the_wrong_place(stranger)
    for body in _evil_bodies():
        stranger.chat(body)
    for step in _evil_answers():
        for stream in (False, True):
            fake.forget()
            fake.answer(step, step)
            stranger.chat(stream=stream, tools=[TOOL])
    fake.forget()
    stranger.chat()


def _keys_in_the_wrong_place(stranger: _Stranger) -> None:
    for path in (f"/{KEY}", f"/v1/chat/completions/{KEY}", f"/v1/models?key={KEY}", f"/v1/chat/completions?key={KEY}"):
        for method in ("GET", "POST"):
            stranger.chat(path=path, method=method)
    stranger.chat(path=f"/openai/deployments/{KEY}/chat/completions")
    chat = "POST /v1/chat/completions HTTP/1.1\r\n"
    for data in (
        f"GET /{KEY}\x1b[31m HTTP/1.1\r\nHost: x\r\n\r\n", f"{KEY} / HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET / {KEY}\r\nHost: x\r\n\r\n", f"GET / HTTP/1.1\r\nHost: {KEY}/\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nX y: {KEY}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer {KEY}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nX: \x1b[31m\r\n\r\n", f"{chat}Host: x\r\nAuthorization: Basic {KEY}\r\n\r\n",
        f"{chat}Host: x\r\nAuthorization: {KEY}\r\n\r\n", f"{chat}Host: x\r\nX-Api-Key: {KEY}\r\n\r\n",
        f"{chat}{_head(KEY)}", f"{chat}{_head(2, f'Expect: {KEY}')}{{}}",
        f"{chat}{_head(2, f'Content-Encoding: {KEY}')}{{}}",
        f"{chat}Host: x\r\nAuthorization: Bearer {KEY}\r\nTransfer-Encoding: {KEY}\r\n\r\n",
    ):  # fmt: skip
        stranger.send(data)


def _evil_bodies() -> Iterator[Any]:
    open_stream = _asking()
    yield "{" + EVIL
    yield {**open_stream, EVIL: 1, KEY: 1}
    for model in (EVIL, KEY, KEY + EVIL):
        yield {**open_stream, "model": model}
    for name in ("user", "reasoning_effort", "prompt_cache_key", "tool_choice", "response_format", "stop", "stream"):
        yield {**open_stream, name: EVIL, "tools": [TOOL]}
    yield {**open_stream, "metadata": {"cursorConversationId": EVIL}, "text": {EVIL: 1}, "reasoning": {EVIL: 1}}
    yield {**open_stream, "tools": [{"type": EVIL, "name": KEY}, TOOL, {**TOOL, "function": {"name": EVIL}}]}
    # The same chat with other tools: now the console tells which ones came and went.
    yield {**open_stream, "tools": [TOOL]}
    yield {**open_stream, "tools": [TOOL, {**TOOL, "function": {"name": EVIL + "2"}}]}
    yield {**open_stream, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": EVIL}}}
    yield {"messages": [{"role": EVIL, "content": [{"type": EVIL, EVIL: KEY}]}]}
    yield {"input": [{"type": EVIL}, {"type": EVIL, "x": EVIL}]}
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    yield {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call]}]}


def _evil_answers() -> Iterator[Answer | Failure | Raw]:
    words = f"the key {KEY} is wrong {EVIL}"
    for status in (400, 401, 403, 418, 429):
        yield Failure(status, words, words, words, headers=(("Set-Cookie", KEY), ("Server", "nginx/1.2.3")))
    yield Failure(401, body=f"<html>{words}</html>".encode())
    yield Answer("thinking " + EVIL, EVIL, (Call(EVIL, EVIL, "{}"),), finish_reason=EVIL)
    stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    for answer in (
        f"{KEY}\x1b[31m\r\n\r\n",
        f"HTTP/1.1 200 {KEY}\x1b[31m\r\n\r\n",
        f"HTTP/1.1 200 OK\r\n{KEY}\x1b[31m\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Length: {KEY}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {KEY}\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Encoding: {KEY}\r\nContent-Length: 2\r\n\r\n{{}}",
        f"HTTP/1.1 302 OK\r\nLocation: http://{KEY}.example/\r\nContent-Length: 0\r\n\r\n",
        f"{stream}: {EVIL}\n\ndata: {json.dumps({'error': words})}\n\n",
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{json.dumps({'error': {'message': words}})}",
        f"{stream}data: {KEY}{EVIL}\n\n",
    ):
        yield Raw(answer.encode())


def _run(*arguments: str) -> Remains:
    with tempfile.TemporaryDirectory() as place, FakeDeepSeek() as fake:
        home, errors = Path(place) / "home", Path(place) / "errors"
        home.mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DEEPSEEK")}
        environment |= {"HOME": str(home), "USERPROFILE": str(home), "PYTHONIOENCODING": "utf-8"}
        environment |= {"PYTHONPATH": str(ROOT)}
        flags = ("--port", "0", "--base-url", fake.url, "--trace-dir", str(home / "traces"))
        with contextlib.closing(Process((*flags, *arguments), environment, errors)) as process:
            welcome = process.read_until("Stop with Ctrl-C.\n")
            stranger = _Stranger(address(welcome))
            _provoke(stranger, fake)
            process.send(signal.SIGTERM)
            process.wait()
            log = welcome + process.rest() + errors.read_bytes().decode()
        files = {str(each): each.read_bytes() for each in home.rglob("*.*") if each.is_file()}
        return Remains(log, files, stranger.replies)


@unittest.skipIf(os.name == "nt", "a process cannot be asked to end there")
class TestOutput(unittest.TestCase):
    flags: ClassVar[tuple[str, ...]] = ()
    remains: ClassVar[Remains]

    @classmethod
    def setUpClass(cls) -> None:
        cls.remains = _run(*cls.flags)

    def test_the_key_is_in_no_log_line(self) -> None:
        self.assertEqual([], [line for line in self.remains.log.split("\n") if KEY in line])

    def test_the_key_is_in_no_file(self) -> None:
        self.assertGreater(len(self.remains.files), 20, "traces and a database were written")
        self.assertEqual([], [name for name, data in self.remains.files.items() if KEY.encode() in data])

    def test_the_key_is_in_no_error_response_and_no_header(self) -> None:
        for status, headers, body in self.remains.replies:
            self.assertNotIn(KEY, str(headers))
            if (status >= 400 or b'"error"' in body) and not any(code in body for code in OWN_BYTES):
                self.assertNotIn(KEY, body.decode())

    def test_a_request_cannot_forge_a_log_line(self) -> None:
        # Whatever a reader takes for the end of a line.
        lines = self.remains.log.splitlines()
        self.assertEqual([], [line for line in lines if re.match(r"\s*(┌ #999|forged)", line)])

    def test_no_log_line_holds_a_terminal_escape(self) -> None:
        self.assertEqual([], re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]", self.remains.log))

    def test_hostile_requests_cause_no_unexpected_failure(self) -> None:
        for words in ("Traceback", "unexpected", "failed"):
            self.assertNotIn(words, self.remains.log)
        self.assertEqual([], [reply for reply in self.remains.replies if reply.status == 500])
        self.assertEqual(200, self.remains.replies[-1].status, "and it still answers")

    def test_every_refusal_has_the_error_shape(self) -> None:
        refused = [reply for reply in self.remains.replies if reply.status >= 400]
        self.assertGreater(len(refused), 30)
        for reply in refused:
            self.assertLessEqual({"message", "type", "param", "code"}, reply.value["error"].keys())

    def test_no_response_header_names_python_or_a_version(self) -> None:
        for reply in self.remains.replies:
            self.assertNotRegex(str(reply.headers), r"(?i)'server'|python|set-cookie|\d\.\d")

    def test_only_a_verbose_log_holds_a_prompt(self) -> None:
        self.assertEqual(bool(self.flags), PROMPT in self.remains.log)


class TestVerboseOutput(TestOutput):
    flags = ("--verbose",)


@unittest.skipIf(os.name == "nt", "permissions are the profile's there")
class TestFiles(ServeTest):
    def test_the_files_of_the_proxy_are_private_whatever_the_umask(self) -> None:
        """Created by a process that was told to share everything."""
        fake = self.enterContext(FakeDeepSeek())
        self.addCleanup(os.umask, os.umask(0))
        _, welcome = self.serve("--base-url", fake.url, "--trace-dir", str(self.home / "traces"))
        _Stranger(address(welcome)).chat(stream=True)
        made = [*self.home.rglob("*")]
        self.assertGreaterEqual(len(made), 5, made)
        self.assertEqual([], [str(each) for each in made if stat.S_IMODE(each.stat().st_mode) & 0o077])
