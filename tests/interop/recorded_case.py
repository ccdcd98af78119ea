"""What tests with an official package share: a DeepSeek, a proxy over a directory of its own, and clients whose every
answer is checked against the package's types when a test ends (see typed).
"""

from tests.fake_deepseek import Answer
from tests.interop.command_line import ClientCase, Json
from tests.interop.typed import Answered, Recording

# An end that waits for DeepSeek to close its connection takes five seconds, and no answer here as many.
SECONDS = 4.0

# Outer whitespace, escapes, letters beyond ASCII and beyond 16 bits: what gets lost on the way.
THOUGHT = '\n Rain?\t"für" 雨 🌧 \\n </think> \n'


class RecordedCase(ClientCase):
    """Clients of a package; a subclass says what an answer has to be in `check`."""

    def setUp(self) -> None:
        super().setUp()
        self.recorders: list[Recording] = []

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
