"""What the tests of the Responses API share: clients of the official package, and tools of every kind."""

import json
from typing import Any

import openai

from tests.fake_deepseek import Call
from tests.interop import typed_responses
from tests.interop.command_line import KEY
from tests.interop.recorded_case import SECONDS, RecordedCase
from tests.interop.typed import Answered, Json
from tests.interop.typed_responses import Recorder

SEALED = "reasoning.encrypted_content"

LOOK_UP = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather.", "parameters": LOOK_UP, "strict": False}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)+/'}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files.", "format": GRAMMAR}
SPAWN = {"type": "function", "name": "spawn", "description": "Starts an agent.", "parameters": LOOK_UP, "strict": False}
AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [SPAWN]}
SEARCH = {"type": "web_search"}
TOOLS = (WEATHER, PATCH, AGENTS, SEARCH)

PATCH_TEXT = '*** Begin Patch\n*** Add File: a "b".txt\n+Brötchen\t🌧\n*** End Patch\n'


def calls(*wanted: tuple[str, Json], turn: int = 0) -> tuple[Call, ...]:
    return tuple(Call(f"call_{turn}{index}", name, json.dumps(given)) for index, (name, given) in enumerate(wanted))


class ResponsesCase(RecordedCase):
    def check(self, answer: Answered) -> None:
        typed_responses.check(answer)

    def client(self, url: str, key: str = KEY) -> openai.OpenAI:
        self.recorders.append(Recorder())
        return self.connected(url, self.recorders[-1], key)

    def hasty_client(self, url: str) -> openai.OpenAI:
        """One that reads events as they come, and may leave."""
        return self.connected(url, openai.DefaultHttpxClient(trust_env=False), KEY)

    def connected(self, url: str, http: Any, key: str) -> openai.OpenAI:
        # No retries: a test wants to see the first answer.
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=SECONDS, http_client=http)
        return self.enterContext(client)
