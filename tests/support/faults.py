"""For tests of a misbehaving upstream: a proxy in front of it, and the verdict on what a client got."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from tests.support.harness import RawReply, RunningProxy, SocketTestCase, chat_body, read_reply, request_bytes
from tests.support.polling import wait_until
from tests.support.raw_replies import TEXT
from tests.support.raw_upstream import RawUpstream, ScriptedReply
from tests.support.resources import descriptors

PATIENCE = 30.0
WHOLE, REPORTED = "whole", "reported"


class FaultTestCase(SocketTestCase):
    """A proxy in front of a RawUpstream; whatever that sends, nothing is raised or logged as an error."""

    patience = PATIENCE

    def setUp(self) -> None:
        before = descriptors()
        self.addCleanup(lambda: wait_until(lambda: descriptors() <= before))
        super().setUp()
        self.records: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = self.records.append  # type: ignore[method-assign]
        log = logging.getLogger("deepseek_cursor_proxy")
        log.addHandler(handler)
        self.addCleanup(log.removeHandler, handler)
        # A test that ran the program left its handlers; nothing may get to the terminal.
        self.enterContext(mock.patch.object(log, "propagate", False))
        self.raised: list[Any] = []
        self.enterContext(mock.patch.object(threading, "excepthook", self.raised.append))
        self.addCleanup(self._assert_quiet)

    def _assert_quiet(self) -> None:
        self.assertEqual([], self.raised)
        loud = [each.getMessage() for each in self.records if each.levelno >= logging.ERROR or each.exc_info]
        self.assertEqual([], loud)

    def upstream(self, respond: Callable[[bytes], ScriptedReply], **options: Any) -> RawUpstream:
        return self.enterContext(RawUpstream(respond, **options))

    def scripted_proxy(self, plays: Sequence[ScriptedReply], **settings: Any) -> "tuple[RunningProxy, RawUpstream]":
        def respond(request: bytes) -> ScriptedReply:
            if request.startswith(b"GET /healthz"):
                # A stranger: another test, in another process, waits for a proxy at a port that was free just now.
                return ScriptedReply.of(b"")
            payload = json.loads(request.partition(b"\r\n\r\n")[2])
            return plays[int(payload["messages"][-1]["content"])]

        upstream = self.upstream(respond)
        return self.proxy(upstream_base_url=upstream.url, **settings), upstream

    def ask(self, sock: socket.socket, number: int = 0, *, stream: bool = True, **fields: Any) -> "Reply":
        sock.settimeout(self.patience)
        sock.sendall(request_bytes(chat_body(str(number), model="deepseek-v4-pro", stream=stream, **fields)))
        reply = Reply(*read_reply(sock))
        self.assertEqual(stream and reply.status == 200, reply.is_stream, reply.headers)
        return reply

    def reply_to(self, data: bytes, *, stream: bool = True, then: str = "close", **settings: Any) -> "Reply":
        proxy, _ = self.scripted_proxy([ScriptedReply.of(data, then)], display_reasoning=False, **settings)
        return self.ask(self.connect(proxy), stream=stream)


class Reply(RawReply):
    """A reply that a client read to its proper end."""

    @property
    def error(self) -> dict[str, Any]:
        value = self.chunks[-1] if self.status == 200 else self.value
        error = value["error"]
        assert {"message", "type", "param", "code"} <= error.keys(), error
        assert isinstance(error["message"], str), error
        assert error["message"], error
        return dict(error)

    @property
    def verdict(self) -> str:
        """WHOLE with status 200, every character and the finish reason; REPORTED with an error.

        Raises AssertionError for anything else: a silent end, half an answer, two ends.
        """
        if self.status != 200:
            assert self.status in (502, 504), (self.status, self.body)
            assert self.headers["content-type"] == "application/json", self.headers
            assert self.error["type"] == ("upstream_error" if self.status == 502 else "upstream_timeout"), self.error
            return REPORTED
        if not self.is_stream:
            assert (self.text, self.value["choices"][0]["finish_reason"]) == (TEXT, "stop"), self.body
            return WHOLE
        assert self.body.endswith(b"data: [DONE]\n\n"), self.body[-200:]
        assert self.body.count(b"data: [DONE]\n\n") == 1, self.body
        errors = [each for each in self.chunks if "error" in each]
        finishes = [choice.get("finish_reason") for each in self.chunks for choice in each.get("choices", ())]
        if errors:
            assert errors == self.chunks[-1:], errors
            assert self.error["type"] == "upstream_error", errors
            return REPORTED
        assert (self.text, finishes.count("stop")) == (TEXT, 1), self.body
        return WHOLE
