"""SmallDeepSeek: a DeepSeek on 127.0.0.1 for the demo and the doctor, which streams the answers of a weather chat.

It keeps the one rule this project is about: a history whose turns lack their reasoning gets DeepSeek's 400. The strict
one, with all that DeepSeek refuses, is the tests' own.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli.demo.cursor import Answer, weather_responder
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

MISSING_REASONING = "The `reasoning_content` in the thinking mode must be passed back to the API."


class ReceivedRequest(NamedTuple):
    """A request, and the status it was answered with."""

    payload: dict[str, Any]
    status: int


class SmallDeepSeek(ThreadingHTTPServer):
    """Its one client waits for every answer, so `seen` and `thoughts` need no lock. Nothing outlives `server_close`."""

    # The close waits for their end.
    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[ReceivedRequest] = []
        # The reasoning of every answer, in order.
        self.thoughts: list[str | None] = []
        # The interval is how long the close may wait for the accepting loop.
        self._accepting = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._accepting.start()

    def server_bind(self) -> None:
        # HTTPServer would ask the resolver for the name of 127.0.0.1, which takes seconds on some machines.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def server_close(self) -> None:
        self.shutdown()
        self._accepting.join()
        super().server_close()

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """The payloads that were answered with 200."""
        return [seen.payload for seen in self.seen if seen.status == 200]

    def reply_to(self, payload: dict[str, Any]) -> Answer | None:
        """The model's answer; None if the reasoning of a turn is missing."""
        turns = (message for message in payload["messages"] if message["role"] == "assistant")
        is_thinking = (payload.get("thinking") or {}).get("type") != "disabled"
        if is_thinking and any("reasoning_content" not in turn for turn in turns):
            self.seen.append(ReceivedRequest(payload, 400))
            return None
        answer = weather_responder(payload)
        self.seen.append(ReceivedRequest(payload, 200))
        self.thoughts.append(answer.reasoning)
        return answer


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0, so that the end of the connection is that of the answer."""

    server: SmallDeepSeek

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.server.reply_to(payload)
        if answer is None:
            error = {"message": MISSING_REASONING, "type": "invalid_request_error", "code": "invalid_request_error"}
            self._begin(400, "application/json")
            self.wfile.write(json.dumps({"error": error}).encode())
            return
        self._begin(200, "text/event-stream")
        for event in _events(answer, payload["model"]):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _begin(self, status: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.end_headers()


def _events(answer: Answer, model: str) -> Iterator[dict[str, Any]]:
    calls = [
        {
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(answer.calls)
    ]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "reasoning_content": answer.reasoning}]
    deltas += [{"content": answer.content}] if answer.content else []
    deltas += [{"tool_calls": calls}] if calls else []
    for delta in (*deltas, {}):
        finish = None if delta else "tool_calls" if calls else "stop"
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        yield {"id": "demo", "object": "chat.completion.chunk", "created": 0, "model": model, "choices": [choice]}


@contextmanager
def local_proxy(config: ProxyConfig) -> Iterator[str]:
    """Serve as long as the context lasts; the base URL."""
    address = ("127.0.0.1", 0)
    with closing(ReasoningStore(":memory:")) as store, DeepSeekProxyServer(address, DeepSeekProxyHandler) as proxy:
        proxy.config, proxy.reasoning_store = config, store
        # The interval is how long shutdown may wait for the accepting loop to look up.
        accepting = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}/v1"
        finally:
            proxy.shutdown()
            accepting.join()
