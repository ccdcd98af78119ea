"""What the tests of the Responses API share: a DeepSeek, a proxy over a directory of its own, clients of the official
package, and tools of every kind. Every answer that a client got is checked when its test ends (see typed_responses).
"""

import json
import unittest
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from deepseek_cursor_proxy.lab.fake_deepseek import Call, FakeDeepSeek
from deepseek_cursor_proxy.reasoning_store import ReasoningStore
from tests.harness import RunningProxy
from tests.interop.typed_responses import Json, Recorder, check

MODEL = "deepseek-v4-pro"
KEY = "sk-right"
# An end that waits for DeepSeek to close its connection takes five seconds, and no answer here as many.
SECONDS = 4.0
SEALED = "reasoning.encrypted_content"

LOOK_UP = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": LOOK_UP, "strict": False}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)+/'}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files.", "format": GRAMMAR}
SPAWN = {"type": "function", "name": "spawn", "description": "Starts an agent.", "parameters": LOOK_UP, "strict": False}
AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [SPAWN]}
SEARCH = {"type": "web_search"}
TOOLS = (WEATHER, PATCH, AGENTS, SEARCH)

# Outer whitespace, escapes, letters beyond ASCII and beyond 16 bits: what gets lost on the way.
THOUGHT = '\n Rain?\t"für" 雨 🌧 \\n </think> \n'
PATCH_TEXT = '*** Begin Patch\n*** Add File: a "b".txt\n+Brötchen\t🌧\n*** End Patch\n'


def calls(*wanted: tuple[str, Json], turn: int = 0) -> tuple[Call, ...]:
    return tuple(Call(f"call_{turn}{index}", name, json.dumps(given)) for index, (name, given) in enumerate(wanted))


class ResponsesCase(unittest.TestCase):
    """A DeepSeek, proxies over one directory, and clients whose every answer is checked in the end."""

    def setUp(self) -> None:
        self.stack = self.enterContext(ExitStack())
        self.place = Path(self.enterContext(TemporaryDirectory(prefix="responses-")))
        self.fake = self.stack.enter_context(FakeDeepSeek(keys={KEY, "sk-other"}))
        self.running: RunningProxy | None = None
        self.recorders: list[Recorder] = []

    def tearDown(self) -> None:
        self.stop()
        for recorder in self.recorders:
            for answer in recorder.answers:
                with self.subTest(method=answer.method, path=answer.path, status=answer.status):
                    check(answer)

    def proxy(self, **settings: Any) -> RunningProxy:
        self.stop()
        store = ReasoningStore(self.place / "reasoning.sqlite3")
        self.running = RunningProxy(self.fake.url, store, **settings)
        return self.running

    def stop(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            running.close()

    def proxy_without_a_memory(self) -> RunningProxy:
        """Another one in the same place, where nothing is left but its secret."""
        self.stop()
        for path in self.place.glob("reasoning.sqlite3*"):
            path.unlink()
        self.assertEqual([path.name for path in self.place.iterdir()], ["secret.key"])
        return self.proxy()

    def client(self, proxy: RunningProxy, key: str = KEY) -> openai.OpenAI:
        self.recorders.append(Recorder())
        return self.connected(proxy, self.recorders[-1], key)

    def hasty_client(self, proxy: RunningProxy) -> openai.OpenAI:
        """One that reads events as they come, and may leave."""
        return self.connected(proxy, openai.DefaultHttpxClient(trust_env=False), KEY)

    def connected(self, proxy: RunningProxy, http: Any, key: str) -> openai.OpenAI:
        # No retries: a test wants to see the first answer.
        client = openai.OpenAI(base_url=proxy.url, api_key=key, max_retries=0, timeout=SECONDS, http_client=http)
        return self.stack.enter_context(client)

    def assert_upstream_saw(self, *reasonings: str) -> None:
        """The last request was accepted, with these reasonings in its assistant turns."""
        self.assertEqual([seen.refusal for seen in self.fake.refused], [])
        messages = self.fake.accepted[-1]["messages"]
        found = [message["reasoning_content"] for message in messages if message["role"] == "assistant"]
        self.assertEqual(found, list(reasonings))
