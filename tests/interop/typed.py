"""What the proxy answers, held strictly against the types of an official package: the part that is the same for all.

The packages build their objects without looking: what is missing or of another type shows when somebody uses it. So a
client keeps the bytes of every answer (Recording), and they are read once more: every object and every event has to be
what the package's types say, field by field, with no value that an enumeration does not have. Fields that a package
does not know are allowed. Which type an answer has is the business of typed_responses and typed_messages.
"""

import json
import re
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pydantic import TypeAdapter, ValidationError

from deepseek_cursor_proxy.upstream import response
from tests.fake_deepseek import Answer
from tests.interop.command_line import ClientCase, Json

_EVENT = re.compile(r"event: (\S+)\ndata: (.+)\n\n")


@dataclass(frozen=True)
class Answered:
    method: str
    path: str
    status: int
    is_stream: bool
    body: str

    @property
    def events(self) -> list[Json]:
        return [json.loads(data) for _, data in _EVENT.findall(self.body)]


class Recording:
    """Makes of a package's HTTP client one that reads every answer to its end before the package gets it.

    Used by one thread.
    """

    def __init__(self) -> None:
        # A proxy that the environment names is not for loopback.
        super().__init__(trust_env=False)  # type: ignore[call-arg]
        self.answers: list[Answered] = []

    def send(self, request: Any, **options: Any) -> Any:
        response = super().send(request, **options)  # type: ignore[misc]
        response.read()
        is_stream = response.headers["content-type"].startswith("text/event-stream")
        answer = Answered(request.method, request.url.path, response.status_code, is_stream, response.text)
        self.answers.append(answer)
        return response


def check_names(answer: Answered) -> None:
    """Raises what is wrong with how the events of a stream are written down."""
    assert _EVENT.sub("", answer.body) == "", "a stream is events with a name and nothing else"
    assert all(name == json.loads(data)["type"] for name, data in _EVENT.findall(answer.body))


def fit(kind: TypeAdapter[Any], value: Json) -> None:
    try:
        kind.validate_python(value, strict=True)
    except ValidationError as error:
        raise AssertionError(_told(error)) from None


def _told(error: ValidationError) -> str:
    """What does not fit, without the many kinds of thing that the value does not even claim to be."""
    wrong = error.errors(include_url=False)
    others = [each["loc"][:-1] for each in wrong if each["type"] == "literal_error" and each["loc"][-1] == "type"]
    told = [each for each in wrong if not any(each["loc"][: len(other)] == other for other in others)]
    return "\n".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}: {each['input']!r}" for each in told or wrong)


# No answer here takes as long, and an end that waits for DeepSeek to close its connection takes longer.
SECONDS, SECONDS_TO_CLOSE = 30.0, 3600.0

# Outer whitespace, escapes, letters beyond ASCII and beyond 16 bits: what gets lost on the way.
THOUGHT = '\n Rain?\t"für" 雨 🌧 \\n </think> \n'


class RecordedCase(ClientCase):
    """Clients of a package; a subclass says what an answer has to be in `check`."""

    def setUp(self) -> None:
        super().setUp()
        self.recorders: list[Recording] = []
        self.enterContext(mock.patch.object(response, "_USAGE_SECONDS", SECONDS_TO_CLOSE))

    def tearDown(self) -> None:
        self.stop_proxy()
        for recorder in self.recorders:
            for answer in recorder.answers:
                with self.subTest(method=answer.method, path=answer.path, status=answer.status):
                    self.check(answer)

    def check(self, answer: Answered) -> None:
        raise AssertionError(f"{type(self).__name__} checks nothing")

    def script(self, payload: Json) -> Answer:
        return Answer("Thinking about it.", "Hello.")

    def assert_upstream_saw(self, *reasonings: str) -> None:
        """The last request was accepted, with these reasonings in its assistant turns."""
        self.assertEqual([seen.refusal for seen in self.fake.refused], [])
        messages = self.fake.accepted[-1]["messages"]
        found = [message["reasoning_content"] for message in messages if message["role"] == "assistant"]
        self.assertEqual(found, list(reasonings))
