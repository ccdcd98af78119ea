"""An upstream of scripted responses, and services around it that use no socket."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import TestCase, mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Heartbeat
from deepseek_cursor_proxy.exchange import failover
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RequestReport
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.observers.events import Event
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.upstream.call_limit import CallLimits
from deepseek_cursor_proxy.upstream.client import Call
from tests.support.client_requests import client_request

DONE = b"data: [DONE]\n\n"
Piece = bytes | Heartbeat | Exception


def event(finish_reason: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode() + b"\n\n"


class FakeResponse:
    """A response that yields scripted pieces, or raises them, and notes what its reader calls."""

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = pieces
        self.notes: list[str] = []
        self.connect_seconds = 0.0
        self.has_input = True

    def stream(self) -> Iterator[bytes | Heartbeat]:
        return self._play()

    def read_with_heartbeats(self) -> Iterator[bytes | Heartbeat]:
        return self._play()

    def _play(self) -> Iterator[bytes | Heartbeat]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def raise_unless_stream(self) -> None: ...

    def note_progress(self) -> None:
        self.notes.append("progress")

    def note_keep_alive(self) -> None:
        self.notes.append("keep-alive")

    def end_soon(self) -> None:
        self.notes.append("end_soon")

    def close(self, *, was_complete: bool) -> None:
        self.notes.append("complete" if was_complete else "closed")


class FakeUpstream:
    def __init__(self, *answers: FakeResponse | Exception) -> None:
        self._answers = list(answers)
        self.payloads: list[dict[str, Any]] = []
        self.call_limits = CallLimits(lambda model: 100, 0)

    def send(self, call: Call, slot: object) -> FakeResponse:
        self.payloads.append(json.loads(call.body))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None: ...


class ExchangeTestCase(TestCase):
    def setUp(self) -> None:
        self.store = ReasoningStore(":memory:")
        self.addCleanup(self.store.close)
        self.enterContext(mock.patch.object(failover, "_FIRST_PAUSE_SECONDS", 0.0))
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def services(self, *answers: FakeResponse | Exception, **settings: Any) -> Services:
        self.upstream = FakeUpstream(*answers)
        services = Services.build(ProxyConfig(**{"retry_budget": 0, **settings}), self.store)
        self.addCleanup(services.close)
        return replace(services, upstream_client=self.upstream, observers=self)  # type: ignore[arg-type]

    def request(
        self, services: Services, *, stream: bool = True, messages: Sequence[Any] = (), **fields: Any
    ) -> ClientRequest:
        body = {"model": "deepseek-v4-pro", "stream": stream}
        body["messages"] = [*messages] or [{"role": "user", "content": "hi"}]
        return client_request(
            RequestReport(services.observers, services.numbers, "chat"), body, ProxyConfig(), **fields
        )

    def stored_texts(self) -> list[str]:
        self.store.flush()
        with self.store.database.reader() as connection:
            return sorted(text.decode() for (text,) in connection.execute("SELECT text FROM reasonings"))
