"""An error about a key names the setting of the client that sent it."""

import json
from typing import Any

from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.proxy import ROUTES
from tests.fake_deepseek import Failure
from tests.support.harness import SocketTestCase
from tests.unit.api.test_clients import CHAT, CLAUDE, CODEX, CURSOR, MESSAGES, NAMES, RESPONSES

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2000},
}


class TestKeyErrors(SocketTestCase):
    def told(self, path: str, agent: str, key: str | None, stream: bool, **settings: Any) -> str:
        services = self.build_services(**settings)
        headers = {"user-agent": agent, **({"authorization": f"Bearer {key}"} if key else {})}
        data = json.dumps({"model": "m", "stream": stream, **BODIES[path]}).encode()
        app = App(services.config, lambda: services, ROUTES)
        reply = app(HttpRequest("POST", path, headers=headers, read_body=lambda: data))
        self.assertEqual(401, reply.status)
        return str(json.loads(reply.body)["error"]["message"])

    def test_every_401_about_the_key_names_the_setting_of_its_client(self) -> None:
        for path, agent, named in ((CHAT, CURSOR, "Cursor"), (RESPONSES, CODEX, "Codex"), (MESSAGES, CLAUDE, "Claude")):
            for stream in (False, True):
                with self.subTest(path, stream=stream):
                    self.fake.answer(Failure(401, "Authentication Fails"))
                    messages = {
                        "No API key.": self.told(path, agent, None, stream),
                        "not among the access keys": self.told(path, agent, "sk-x", stream, access_keys=["sk-other"]),
                        "Authentication Fails": self.told(path, agent, "sk-wrong", stream),
                    }
                    for words, message in messages.items():
                        self.assertIn(words, message)
                        self.assertIn(named, message)
                        others = {"Cursor", "Codex", "Claude"} - {named}
                        self.assertFalse([other for other in others if other in message], message)

    def test_an_unknown_client_reads_of_no_other_clients_setting(self) -> None:
        message = self.told(CHAT, "curl/8", None, False)
        self.assertFalse([name for name in NAMES if name in message], message)
