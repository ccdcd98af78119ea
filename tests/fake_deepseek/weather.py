"""The weather chat of the demo, as answers of the fake DeepSeek."""

from collections.abc import Mapping
from typing import Any

from deepseek_cursor_proxy.cli.demo import cursor
from tests.fake_deepseek.completion import Answer


def weather_responder(payload: Mapping[str, Any]) -> Answer:
    answer = cursor.weather_responder(payload)
    return Answer(answer.reasoning, answer.content, answer.calls)
