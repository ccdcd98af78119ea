"""What the tests of the Messages API share: clients of the official package, and tools."""

import json
from typing import Any

import anthropic

from tests.fake_deepseek import Call
from tests.interop import typed_messages
from tests.interop.command_line import KEY
from tests.interop.recorded_case import SECONDS, RecordedCase
from tests.interop.typed import Answered, Json
from tests.interop.typed_messages import Recorder

LIMIT = 4096
QUESTION = ({"role": "user", "content": "What is the weather?"},)
LOOK_UP = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Weather.", "input_schema": LOOK_UP}
LOCATION = {"name": "get_location", "description": "Where we are.", "input_schema": {"type": "object"}}
TOOLS = (WEATHER, LOCATION)


def calls(*wanted: tuple[str, Json], turn: int = 0) -> tuple[Call, ...]:
    # With spaces and escapes: what comes back are the same values in other bytes.
    return tuple(Call(f"call_{turn}{index}", name, json.dumps(given)) for index, (name, given) in enumerate(wanted))


class MessagesCase(RecordedCase):
    def check(self, answer: Answered) -> None:
        typed_messages.check(answer)

    def client(self, url: str, key: str = KEY, **options: Any) -> anthropic.Anthropic:
        self.recorders.append(Recorder())
        return self.connected(url, self.recorders[-1], **{"api_key": key, **options})

    def connected(self, url: str, http: Any, **options: Any) -> anthropic.Anthropic:
        # No retries: a test wants to see the first answer.
        client = ThinkingClient(base_url=url, max_retries=0, timeout=SECONDS, http_client=http, **options)
        return self.enterContext(client)


class ThinkingClient(anthropic.Anthropic):
    """The client of the package, which asks for thinking unless a request says otherwise; `None` asks for nothing."""

    def _prepare_options(self, options: Any) -> Any:
        body = options.json_data
        if options.url == "/v1/messages":
            body.setdefault("thinking", {"type": "adaptive"})
            if body["thinking"] is None:
                del body["thinking"]
        return super()._prepare_options(options)
