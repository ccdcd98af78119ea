"""Proxies with several upstreams: fakes by name, and the tables that lead to them."""

import json
import logging
import os
from typing import Any
from unittest import mock

from tests.fake_deepseek import Failure, FakeDeepSeek
from tests.support.harness import RawReply, RunningProxy, SocketTestCase, chat_body, request_bytes

CONSOLE = "deepseek_cursor_proxy.observers.console"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def failing(status: int, message: str = "no", **fields: Any) -> FakeDeepSeek:
    return FakeDeepSeek(responder=lambda _: Failure(status, message, **fields))


def question(path: str, text: str, *, stream: bool = False, **fields: Any) -> bytes:
    body: dict[str, Any] = {"model": "deepseek-v4-pro", "stream": stream, **fields}
    if path == RESPONSES:
        body["input"] = text
    else:
        body |= chat_body(text)
    return request_bytes({**body, "max_tokens": 1000} if path == MESSAGES else body, path=path)


class UpstreamsTestCase(SocketTestCase):
    """Tests begin with a fake `main`, asked first, and a fake `spare`, without an answer queued."""

    def setUp(self) -> None:
        super().setUp()
        self.main = self.fake
        self.spare = self.enterContext(FakeDeepSeek())
        # Its warnings are what most of these tests are about.
        quiet = logging.NullHandler()
        logging.getLogger("deepseek_cursor_proxy").addHandler(quiet)
        self.addCleanup(logging.getLogger("deepseek_cursor_proxy").removeHandler, quiet)

    def dead(self) -> FakeDeepSeek:
        with FakeDeepSeek() as fake:
            return fake

    def tables(
        self, main: FakeDeepSeek | None = None, spare: FakeDeepSeek | None = None, **more: FakeDeepSeek
    ) -> dict[str, dict[str, Any]]:
        fakes = {"main": main or self.main, "spare": spare or self.spare, **more}
        return {name: {"base_url": fake.url, "priority": at} for at, (name, fake) in enumerate(fakes.items(), 1)}

    def behind(self, tables: dict[str, dict[str, Any]], **settings: Any) -> RunningProxy:
        return self.proxy(upstreams=tables, **{"display_reasoning": "off", **settings})

    def ask(self, proxy: RunningProxy, text: str = "x", *, key: str = "sk-test", **fields: Any) -> RawReply:
        return self.round_trip(proxy, request_bytes(chat_body(text, **fields), key=key))

    def error(self, proxy: RunningProxy, *args: Any, **fields: Any) -> tuple[int, str]:
        reply = self.ask(proxy, *args, **fields)
        return reply.status, json.loads(reply.body)["error"]["message"]

    def set_keys(self, **variables: str) -> None:
        self.enterContext(mock.patch.dict(os.environ, variables))

    def counts(self, *fakes: FakeDeepSeek) -> list[int]:
        return [len(fake.seen) for fake in fakes or (self.main, self.spare)]
