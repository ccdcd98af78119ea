"""The start is quick: modules that the first small answer does not need are imported later."""

import os
import subprocess
import sys
import tempfile
import unittest

from tests.support.systems import ROOT

# Each costs every start milliseconds, and belongs to chats, to mistakes or to other commands.
LATER = {
    "deepseek_cursor_proxy.api.chat",
    "deepseek_cursor_proxy.deepseek.model_resolver",
    "deepseek_cursor_proxy.deepseek.chat_api",
    "deepseek_cursor_proxy.conversation",
    "deepseek_cursor_proxy.upstream.client",
    "deepseek_cursor_proxy.http1.sse",
    "deepseek_cursor_proxy.features.traces.trace",
    "deepseek_cursor_proxy.cli.tunnel",
    "deepseek_cursor_proxy.observers.console",
    "deepseek_cursor_proxy.protocols.request",
    "deepseek_cursor_proxy.reasoning.restore",
    *("difflib", "tomllib", "hashlib", "hmac", "secrets", "getpass", "urllib.request", "concurrent.futures"),
    "subprocess",
}
# The rest of what a chat may need, though hardly any does.
SELDOM = {
    "deepseek_cursor_proxy.features.choices.exchanges",
    "deepseek_cursor_proxy.features.traces.trace",
    "concurrent.futures",
}

SCRIPT = """
import sys
before = set(sys.modules)

import socket, threading
from pathlib import Path
from deepseek_cursor_proxy.cli.commands import COMMANDS
from deepseek_cursor_proxy.cli.parser import build_parser
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.config.settings import CONFIG_PATH
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from deepseek_cursor_proxy.cli.serve import ensure_config_file
from deepseek_cursor_proxy.features.dashboard import service
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer

build_parser("serve", COMMANDS)
ensure_config_file()
config = LoadedConfig.load(CONFIG_PATH, {}, {"port": "0", "reasoning_content_path": ":memory:"}).config
with DeepSeekProxyServer((config.host, config.port)) as server:
    server.config, server.reasoning_store = config, ReasoningStore(":memory:")
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    first = set(sys.modules)
    server.services()
    server.shutdown()
    serving.join()
server.reasoning_store.close()
print(*(first - before))
print(*(set(sys.modules) - before))
"""


class TestStart(unittest.TestCase):
    def test_the_first_small_answer_comes_before_the_rest_of_the_program(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            command, environment = [sys.executable, "-c", SCRIPT], {**os.environ, "HOME": home, "USERPROFILE": home}
            done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        self.assertEqual("", done.stderr)
        first, warm = (set(line.split()) for line in done.stdout.splitlines())
        self.assertEqual(set(), first & LATER)
        # Each costs a quarter of a millisecond; the standard library's differ by version.
        ours = [name for name in first if name.startswith("deepseek_cursor_proxy")]
        self.assertLessEqual(len(ours), 80)
        # Names that do not exist would be absent for no good reason.
        chat = {"deepseek_cursor_proxy.api.chat", "deepseek_cursor_proxy.reasoning.restore"}
        self.assertLessEqual(chat, warm)
        self.assertEqual(set(), warm & SELDOM)
