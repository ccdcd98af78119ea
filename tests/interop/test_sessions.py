"""An export as `datasets` loads it: the script of the documentation runs, and its masks are what the model wrote."""

import re
import subprocess
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

import openai

from tests.fake_deepseek import Answer, FakeDeepSeek
from tests.interop import packages, sessions
from tests.interop.command_line import KEY, MODEL, RUN_SECONDS
from tests.support.harness import running_proxy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / ".github" / "docs" / "sessions.md"
TOKENIZER = ROOT / "tests" / "wire" / "tokenizer.json"

_commands = Path()


def setUpModule() -> None:
    global _commands
    _commands = packages.pypi("datasets")


class ExportTest(unittest.TestCase):
    def test_the_script_of_the_documentation_loads_an_export_and_checks_its_masks(self) -> None:
        (script,) = re.findall(r"```python\n(from datasets .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        with TemporaryDirectory() as folder, FakeDeepSeek(keys={KEY}) as fake:
            with running_proxy(fake.url, tokenizer=TOKENIZER) as root:
                session = sessions.create(root)
                fake.answer(Answer("I think.", "Hello."), Answer("I think again.", "Goodbye."))
                client = openai.OpenAI(base_url=f"{session}/v1", api_key=KEY)
                first = {"role": "user", "content": "Say hello."}
                answer = client.chat.completions.create(model=MODEL, messages=[first])
                echo = {"role": "assistant", "content": answer.choices[0].message.content}
                chat = [first, echo, {"role": "user", "content": "Say goodbye."}]
                client.chat.completions.create(model=MODEL, messages=chat)
                client.close()
                lines = sessions.export(session, "nodes")
                Path(folder, "nodes.jsonl").write_bytes(sessions.raw_export(session, "nodes"))
            command = [_commands / "python", "-c", script]
            environment = {"HOME": folder, "PATH": str(_commands), "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
            )
        self.assertEqual(0, done.returncode, done.stderr[-2000:])
        (node,) = lines
        written = sum(token != -100 for token in node["masked_tokens"])
        self.assertIn(f"{len(node['tokens'])} tokens, {written} written by the model", done.stdout)
        self.assertGreater(written, 10)
