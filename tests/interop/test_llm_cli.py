"""The `llm` command through the proxy, against the strict fake: a tool loop, then `llm -c`.

llm 0.36 keeps its history in a database and sends back role, content and tool_calls alone, so every reasoning DeepSeek
sees after the first request was put there by the proxy.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.fake_deepseek import Answer, weather_responder
from tests.interop.command_line import AWKWARD, KEY, MODEL, ClientCase, Json, Program

TOOLS = '''
def get_location() -> str:
    """Where the user is."""
    return "Hangzhou"


def get_weather(city: str) -> str:
    """The weather there."""
    return f"{city}: cloudy, 7 degrees"
'''

# Python imports this as it starts.
LOOPBACK_ONLY = """
import sys


def watch(event, arguments):
    host = arguments[1][0] if event == "socket.connect" else arguments[0] if event == "socket.getaddrinfo" else None
    if host not in (None, "127.0.0.1", "/"):
        raise OSError(f"no network here: {host}")


sys.addaudithook(watch)
"""


class LlmTest(ClientCase):
    def setUp(self) -> None:
        super().setUp()
        self.write("tools.py", TOOLS)
        self.write("site/sitecustomize.py", LOOPBACK_ONLY)
        settings = {"LLM_USER_PATH": self.home / "llm", "PYTHONPATH": self.home / "site"}
        environment = tuple((name, str(value)) for name, value in settings.items())
        self.llm = Program((sys.executable, "-m", "llm"), environment)

    def write(self, name: str, text: str) -> Path:
        path = self.home / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def script(self, payload: Json) -> Answer:
        answer = weather_responder(payload)
        return replace(answer, reasoning=f"{answer.reasoning}{AWKWARD}")

    def point_at(self, url: str) -> None:
        model = {"model_id": "ds", "model_name": MODEL, "api_base": f"{url}/v1", "supports_tools": True}
        # Without the name of a key llm ignores --key, and sends DUMMY_KEY. YAML reads JSON.
        self.write("llm/extra-openai-models.yaml", json.dumps([{**model, "api_key_name": "proxy"}]))

    def ask(self, question: str, *options: str) -> str:
        command = ("-m", "ds", "--key", KEY, "--functions", str(self.home / "tools.py"), *options, question)
        return self.run_client(self.llm, *command)

    def assert_loop(self, keep: str, *options: str, display: bool) -> None:
        self.point_at(self.start_proxy(display_reasoning=display))
        first = self.ask("What is the weather here?", *options)
        self.assertIn("It is cloudy in Hangzhou, 7 degrees.", first)
        self.start_proxy(keep, display_reasoning=display)
        second = self.ask("Should I take an umbrella?", "-c", *options)
        self.assertIn("Yes, take an umbrella.", second)
        self.assert_whole_chat()

    def assert_whole_chat(self) -> None:
        self.assertEqual(len(self.said), 4, self.output)
        self.assert_nothing_lost()
        self.assertEqual(self.tool_results(), ["Hangzhou", "Hangzhou: cloudy, 7 degrees"])

    def test_the_loop_with_what_setup_wrote(self) -> None:
        models = self.home / "llm" / "extra-openai-models.yaml"
        models.parent.mkdir()
        models.write_text("- model_id: mine\n  model_name: mine", encoding="utf-8")
        self.set_up("llm", self.start_proxy(display_reasoning=False), LLM_USER_PATH=str(models.parent))
        self.run_client(self.llm, "keys", "set", "deepseek-proxy", "--value", KEY)
        command = ("-m", MODEL, "--functions", str(self.home / "tools.py"), "What is the weather here?")
        self.assertIn("It is cloudy in Hangzhou, 7 degrees.", self.run_client(self.llm, *command))
        self.assert_nothing_lost()
        self.assertIn("mine", self.run_client(self.llm, "models"))

    def test_the_loop_streamed(self) -> None:
        self.assert_loop("all", display=False)

    def test_the_loop_plain(self) -> None:
        self.assert_loop("all", "--no-stream", display=False)

    def test_the_loop_with_the_thinking_shown_through_proxies_that_never_saw_it(self) -> None:
        """The thinking that llm kept with the visible text is all there is."""
        self.assert_loop("nothing", display=True)
