"""Real command-line clients, seen from outside: a proxy for them to talk to, a run in a clean home, the law upstream.

A client is a program nobody here wrote, so it gets a home of its own, none of the caller's settings, no network but
loopback and a time limit, and nothing that it started outlives its run. What it printed is shown when a test fails.
Which client, what it is asked and what the model says to it is the business of the tests.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import unittest
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call, FakeDeepSeek
from tests.interop import packages
from tests.support.harness import RunningProxy
from tests.support.ports import server_port

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "node"
MODEL = "deepseek-v4-pro"
KEY = "sk-right"
Json = dict[str, Any]
# Ends a client that hangs. On a busy machine a run takes minutes.
RUN_SECONDS = 600

# Outer whitespace, escapes, letters beyond ASCII and beyond 16 bits, and marks of our own: what gets lost on the way.
AWKWARD = '\n\n  "C:\\new" – für 雨 🌧\t</think> <details> \n'


@dataclass(frozen=True)
class Program:
    """A client that is installed, and what its environment needs besides the usual."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


class ClientCase(unittest.TestCase):
    """One home, one DeepSeek and one proxy per test; a subclass may say in `script` what the model answers.

    `needs` are installed before its first test, by `install`; `commands` is where they are.
    """

    needs: tuple[str, ...] = ()
    install = staticmethod(packages.npm)
    commands = Path()

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        if cls.needs:
            cls.commands = cls.install(*cls.needs)

    def setUp(self) -> None:
        # Last in, first out: what a client still holds of its home is gone before the home is.
        self.home = Path(self.enterContext(TemporaryDirectory(prefix="client-"))).resolve()
        self.scratch = self.home / "scratch"
        self.scratch.mkdir()
        self.output = ""
        self.said: list[Answer] = []
        self.fake = self.enterContext(FakeDeepSeek(responder=lambda payload: self.respond(payload), keys={KEY}))
        self.proxy: RunningProxy | None = None
        self._port = self.enterContext(server_port())
        self.addCleanup(self.stop_proxy)

    def script(self, payload: Json) -> Answer:
        number = len(self.said)
        thought = f"Step {number}.{AWKWARD}```python\nprint('no')\n"
        if number or not payload.get("tools"):
            return Answer(thought, f"Step {number} is done.")
        # Without text: clients take the first text of a run for its answer. The space is none that JavaScript writes.
        return Answer(thought, None, (Call("call_00_0123456789abcdefABCDEF01", "get_weather", '{"city": "Rome"}'),))

    def start_proxy(self, keep: str = "nothing", **settings: Any) -> str:
        """The root URL of a proxy in place of the one before, of whose files it has nothing, the secret, or all."""
        self.stop_proxy()
        place = self.home / "proxy"
        for path in place.glob({"nothing": "*", "secret": "reasoning*", "all": "none"}[keep]):
            path.unlink()
        store = ReasoningStore(place / "reasoning.sqlite3")
        self.proxy = RunningProxy(self.fake.url, store, port=self._port, **settings)
        self.url = self.proxy.url.removesuffix("/v1")
        return self.url

    def stop_proxy(self) -> None:
        proxy, self.proxy = self.proxy, None
        if proxy is not None:
            proxy.close()

    def respond(self, payload: Json) -> Answer:
        self.said.append(self.script(payload))
        return self.said[-1]

    def run_client(self, program: Program, *arguments: str, may_fail: bool = False) -> str:
        """What the client prints; it fails the test when the client fails or takes too long."""
        status, printed, errors = _run(program, arguments, self.home, self.scratch)
        self.output += f"\n$ {Path(program.command[-1]).name} {' '.join(arguments)}\n{printed}{errors}[{status}]\n"
        if status is None or (status != 0 and not may_fail):
            fate = f"ended with {status}" if status is not None else f"was stopped after {RUN_SECONDS} s"
            refused = [seen.refusal for seen in self.fake.refused]
            self.fail(f"the client {fate}; DeepSeek got {len(self.said)} requests and refused {refused}{self.output}")
        return printed

    def set_up(self, client: str, url: str, model: str = MODEL, **environment: str) -> str:
        """Point a client in this home to a proxy by the command for it; what that prints."""
        return self._setup(client, "--url", url, "--model", model, **environment)

    def undo(self, client: str) -> str:
        return self._setup(client, "--undo")

    def _setup(self, *arguments: str, **environment: str) -> str:
        place = {"PYTHONPATH": str(ROOT), **environment}
        command = (sys.executable, "-W", "error", "-m", "deepseek_cursor_proxy", "setup")
        return self.run_client(Program(command, tuple(place.items())), *arguments, "--yes")

    # What must hold upstream …

    def assert_nothing_lost(self) -> None:
        """Every request was accepted, the history only grew, and every turn in it is exactly what the model said."""
        self.assert_every_turn_is_exact()
        before: list[Json] = []
        for payload in self.fake.accepted:
            # DeepSeek bills a prefix it has seen at a fraction.
            self.assertEqual(payload["messages"][: len(before)], before, self.output)
            before = payload["messages"]

    def assert_every_turn_is_exact(self) -> None:
        """Every request was accepted, and every turn in its history is exactly what the model said."""
        self.assertEqual([seen.refusal for seen in self.fake.refused], [], self.output)
        self.assertEqual(len(self.fake.accepted), len(self.said), self.output)
        for number, payload in enumerate(self.fake.accepted):
            turns = [message for message in payload["messages"] if message["role"] == "assistant"]
            sent = [(one["reasoning_content"], one["content"] or "") for one in turns]
            self.assertEqual(sent, [(one.reasoning, one.content or "") for one in self.said[:number]], self.output)

    def tool_results(self) -> list[str]:
        """What the client's tools said, in the order of the calls, as DeepSeek saw it last."""
        return [message["content"] for message in self.fake.accepted[-1]["messages"] if message["role"] == "tool"]


class NodeCase(ClientCase):
    """A script of ours that uses packages from npm. Node looks for them where it lies, so it lies beside them."""

    def run_script(self, name: str, **given: Any) -> Any:
        """The JSON that a script printed."""
        script = Path(shutil.copy(SCRIPTS / name, self.commands.parent.parent))
        parameters = self.home / "parameters.json"
        parameters.write_text(json.dumps({"apiKey": KEY, **given}), encoding="utf-8")
        program = Program(("node", str(script)), ())
        return json.loads(self.run_client(program, str(parameters)))


# Running somebody else's program …


def _run(program: Program, arguments: Sequence[str], home: Path, scratch: Path) -> tuple[int | None, str, str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **dict(program.environment)}
    # Files, not pipes: a grandchild that keeps a pipe open would keep us waiting for its end.
    printed, errors = home / "printed", home / "errors"
    with printed.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [*program.command, *arguments], cwd=scratch, env=environment, stdin=subprocess.DEVNULL, stdout=out,
            stderr=err, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process, home)
    return status, _plain(printed), _plain(errors)


def _plain(path: Path) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", path.read_text("utf-8", "replace"))


def _end(process: "subprocess.Popen[bytes]", home: Path) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Agents give their shells a process group of their own; whoever lives in this home was started by this run.
    for pid in _inhabitants(home):
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                if not select.select([handle], [], [], RUN_SECONDS)[0]:
                    raise AssertionError(f"process {pid} does not end")
            finally:
                os.close(handle)


def _inhabitants(home: Path) -> Iterator[int]:
    """The processes whose HOME this is; none where the system does not tell."""
    wanted = b"HOME=" + os.fsencode(home)
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)
