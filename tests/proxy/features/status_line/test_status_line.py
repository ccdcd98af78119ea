"""The script that Claude Code runs for its status line, beside a proxy that its chat has used."""

import json
import os
import re
import subprocess
import sys

from deepseek_cursor_proxy.features.status_line import script
from tests.support.harness import SocketTestCase, chat_body, request_bytes

CHAT = "173591e6-2491-4e9d-9b50-7e184ce91410"


class StatusLineTest(SocketTestCase):
    def run_script(self, given: str = json.dumps({"session_id": CHAT}), **variables: str) -> str:
        root = f"http://127.0.0.1:{self.running.address[1]}"
        place = {**os.environ, "ANTHROPIC_BASE_URL": root, "ANTHROPIC_AUTH_TOKEN": "sk-test", **variables}
        command = (sys.executable, "-I", "-S", script.__file__)
        done = subprocess.run(command, input=given.encode(), env=place, capture_output=True, check=False)
        self.assertEqual((0, b""), (done.returncode, done.stderr))
        return done.stdout.decode()

    def test_the_script_prints_what_the_chat_has_used(self) -> None:
        self.assertEqual("", self.run_script())
        body = request_bytes(chat_body(model="deepseek-v4-pro"), headers=(f"x-claude-code-session-id: {CHAT}",))
        self.assertEqual(200, self.round_trip(self.running, body).status)
        self.assertRegex(self.run_script(), re.compile(r"DeepSeek V4 Pro · \d+ % cached · <?\$0\.\d+"))

    def test_the_script_prints_nothing_where_no_proxy_of_this_key_answers(self) -> None:
        body = request_bytes(chat_body(), headers=(f"x-claude-code-session-id: {CHAT}",))
        self.assertEqual(200, self.round_trip(self.running, body).status)
        for given in ("", "{}", "[]", '{"session_id": 5}', '{"session_id": "x y"}', '{"session_id": "other"}'):
            self.assertEqual("", self.run_script(given), given)
        for variables in (
            {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"},
            {"ANTHROPIC_BASE_URL": f"https://127.0.0.1:{self.running.address[1]}"},
            {"ANTHROPIC_BASE_URL": "http://[::1"},
            {"ANTHROPIC_AUTH_TOKEN": "sk-another-key"},
            {"ANTHROPIC_AUTH_TOKEN": ""},
        ):
            self.assertEqual("", self.run_script(**variables), variables)
