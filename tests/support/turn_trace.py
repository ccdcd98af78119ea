"""The trace of one streamed tool turn: which functions of the package run for it, and how they call each other.

The turn is the second request of a chat through a running proxy with a store on disk: a history with a call and its
result, whose reasoning is restored; the answer thinks and calls a tool again. An earlier chat has done what is done
once in a process. `python -m tests.support.turn_trace` prints the figures, with `--functions` also how often each
function was called.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import deepseek_cursor_proxy
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, FakeDeepSeek
from tests.support.cursor import Call, CursorClient, echo
from tests.support.harness import RunningProxy
from tests.support.histories import TOOLS
from tests.support.polling import wait_until

_PACKAGE = str(Path(deepseek_cursor_proxy.__file__).parent)
_SERVER = str(Path(_PACKAGE, "server"))
_EXCHANGE = str(Path(_PACKAGE, "exchange"))
_TESTS = str(Path(__file__).parent.parent)


class TurnTrace(NamedTuple):
    """`functions` counts the calls of each, as `file:name`, in the order of the first; a switch is to another folder.

    `threads` is how many ran functions of `exchange/`.
    """

    functions: Counter[str]
    switches: int
    depth: int
    threads: int

    @property
    def files(self) -> int:
        return len({name.partition(":")[0] for name in self.functions})


class _Profiler:
    """Called by every thread that starts in `installed`; the lock protects the fields."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_recording = False
        self._functions: Counter[str] = Counter()
        self._switches = self._depth = 0
        self._threads: set[int] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = threading.getprofile()
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(before)  # type: ignore[arg-type]

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if not self._is_recording or event != "call" or not path.startswith(_PACKAGE):
            return
        if frame.f_code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>"):
            # Functions of their own before Python 3.12 only.
            return
        callers = list(_outer(frame))
        if any(each.startswith(_TESTS) for each in callers):
            # The made-up DeepSeek uses functions of the package, too.
            return
        own = [each for each in callers if each.startswith(_PACKAGE)]
        if not any(each.startswith(_SERVER) for each in (*own, path)):
            # A thread that works behind the answer: the log's, the ledger's.
            return
        with self._lock:
            if path.startswith(_EXCHANGE):
                self._threads.add(threading.get_ident())
            self._functions[f"{path.removeprefix(_PACKAGE)[1:]}:{frame.f_code.co_qualname}"] += 1
            self._switches += bool(own) and Path(own[0]).parent != Path(path).parent
            self._depth = max(self._depth, len(own) + 1)

    def trace(self) -> TurnTrace:
        with self._lock:
            return TurnTrace(self._functions.copy(), self._switches, self._depth, len(self._threads))


def _outer(frame: FrameType) -> Iterator[str]:
    caller = frame.f_back
    while caller is not None:
        yield caller.f_code.co_filename
        caller = caller.f_back


def trace_turn() -> TurnTrace:
    profiler = _Profiler()
    with profiler.installed(), tempfile.TemporaryDirectory() as folder, FakeDeepSeek() as fake:
        store = ReasoningStore(Path(folder, "reasonings.sqlite3"))
        with closing(RunningProxy(fake.url, store, retry_budget=8)) as proxy:
            _play_turn(proxy, fake, "Read a.py.", nullcontext())
            _play_turn(proxy, fake, "Read b.py.", profiler.recording())
    return profiler.trace()


def _play_turn(proxy: RunningProxy, fake: FakeDeepSeek, text: str, recording: AbstractContextManager[None]) -> None:
    question, result = {"role": "user", "content": text}, {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    with CursorClient(proxy.url, tools=TOOLS) as client:
        fake.answer(_answer(1))
        first = client.post([question])
    wait_until(lambda: len(proxy.server.connections) == 0)
    with recording:
        with CursorClient(proxy.url, tools=TOOLS) as client:
            fake.answer(_answer(2))
            second = client.post([question, echo(first), result])
        assert second.calls, second
        wait_until(lambda: len(proxy.server.connections) == 0)


def _answer(number: int) -> Answer:
    call = Call(f"call_{number}", "read_file", '{"path": "a.py"}')
    return Answer(reasoning=f"I read it, {number}.", content="Let me see.", calls=(call,))


if __name__ == "__main__":
    trace = trace_turn()
    print(f"{trace.files} files, {len(trace.functions)} functions, {trace.functions.total()} calls,")
    print(f"{trace.switches} switches of folder, depth {trace.depth}")
    if "--functions" in sys.argv:
        for name, count in sorted(trace.functions.items()):
            print(f"{count:5} {name}")
