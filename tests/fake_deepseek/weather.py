"""The weather chat of the demo, as answers of the fake DeepSeek."""

from collections.abc import Mapping
from typing import Any

from tests.fake_deepseek.completion import Answer
from tests.support import cursor


def weather_responder(payload: Mapping[str, Any]) -> Answer:
    answer = cursor.weather_responder(payload)
    return Answer(answer.reasoning, answer.content, answer.calls)
