"""Each measure yields its rows, a run prints them and leaves nothing behind; never how fast anything is."""

import contextlib
import io
import os
import random
import select
import signal
import socket
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from unittest.mock import patch

from tests import bench
from tests.bench import agents, measures
from tests.bench.__main__ import main
from tests.bench.agent_clients import CLIENTS, AgentClient, EditingCursor
from tests.bench.agents import ChatResult, Model, play
from tests.bench.load_clients import Client, Crowd, post, requests_per_second, run_crowd
from tests.bench.load_upstream import LoadUpstream, marked_chunk
from tests.bench.measures import QUICK, Scale, question
from tests.bench.proxies import THIS_PROXY, CpuPinning, ProxyCommand, Target
from tests.bench.rounds import Contest
from tests.bench.table import DIRECT, OURS, Figure, Row
from tests.fake_deepseek import FakeDeepSeek, Raw
from tests.support.harness import running_proxy
from tests.support.processes import BenchmarkFailed, Server

TINY = Scale(
    **dict.fromkeys(("stream_rounds", "turns_measured", "starts"), 1),
    **dict.fromkeys(("stored_turns", "clients", "bursts"), 2), requests=4,
    streams=((1, 30), (2, 30)), stream_seconds=0.1, turns=(1, 2), burst_seconds=0.01,
)  # fmt: skip
STREAMS = ("{} x 30 chunks/s: delivered", "added p50 of a chunk", "added p99 of a chunk", "CPU per chunk (mean)")
MEASURES = (
    *("small request: added p50", "CPU per request (mean)"),
    *("small request on a new connection: added p50", "CPU per request (mean)"),
    *("first event: added p50", "CPU per stream of 8 chunks (mean)"),
    *("10,000 chunks at once: added p50", "CPU per stream (mean)"),
    *(name.format(streams) for streams, _ in TINY.streams for name in (*STREAMS, "memory meanwhile")),
    *("2 keep-alive clients: small requests", "CPU per request (mean)"),
    *("storing a tool turn: added p50", "CPU per turn (mean)"),
    *(f"chat of {turns} tool turns: CPU per request (mean)" for turns in TINY.turns),
    *("warm start to first /v1/models answer", "CPU until then", "idle memory"),
)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Forwarder(ProxyCommand):
    """A proxy that forwards everything as it is; nothing is known of its processes."""

    def running(self, upstream: Server, home: Path, pinning: CpuPinning) -> AbstractContextManager[Target]:
        return contextlib.nullcontext(Target(self.name, f"{upstream.url}/v1"))


class TestMeasures(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        upstream = self.enterContext(LoadUpstream())
        self.upstream = Server(upstream.url, os.getpid())
        self.direct = Target(DIRECT, upstream.url, (self.upstream,))
        self.enterContext(patch.object(measures, "_IDLE_SECONDS", 0.0))

    def contest(self, *proxies: Target, commands: Sequence[ProxyCommand] = ()) -> Contest:
        return Contest(self.direct, commands, self.place, CpuPinning(), proxies=proxies)

    def test_every_measure_yields_its_rows_beside_a_proxy_that_restores_nothing(self) -> None:
        contest = self.contest(
            commands=(THIS_PROXY, Forwarder("other", f"{sys.executable} -m no_such_module_here {{port}}"))
        )
        rows = list(bench.measure(contest, TINY))
        self.assertEqual(list(MEASURES), [row.measure.strip() for row in rows])
        for row in rows:
            if "CPU" not in row.measure and "memory" not in row.measure:
                self.assertTrue(row.figures.get(OURS), row)
                self.assertTrue(row.figures.get("other"), row)
            if "delivered" in row.measure:
                self.assertEqual({100}, {figure.value for figure in row.figures.values() if figure})
        self.assertEqual(["other: a growing chat: only 0 of 1 turns came with their reasoning"], contest.notes)
        with self.assertRaisesRegex(BenchmarkFailed, "only 0 of 1 turns"):
            list(measures.growing_chats(self.contest(Target(OURS, self.direct.url)), TINY))

    def test_another_proxy_may_fail_and_the_direct_way_and_this_proxy_may_not(self) -> None:
        broken = "http://127.0.0.1:9"
        contest = self.contest(Target(OURS, self.direct.url), Target("other", broken))
        delivered, *_ = measures.paced_streams(contest, TINY, 1, 30)
        self.assertEqual(0, (delivered.figures["other"] or Figure(1, ())).value)
        self.assertIn("other: 1 x 30 chunks/s: 1 failed, 1 with: ", contest.notes[0])
        row, *_ = measures.small_requests(contest, TINY)
        self.assertEqual({OURS}, set(row.figures))
        self.assertIn("other: small request: ", contest.notes[-1])
        missing = ProxyCommand("other", f"{sys.executable} -m no_such_module_here {{port}}")
        contest.commands = (THIS_PROXY, missing)
        self.assertEqual([{OURS}] * 3, [set(row.figures) for row in measures.startup(contest, TINY)])
        self.assertRegex(contest.notes[-1], "other: a start: other did not start: .*no_such_module_here")
        with self.assertRaisesRegex(BenchmarkFailed, f"small request: {OURS}: "):
            list(measures.small_requests(self.contest(Target(OURS, broken)), TINY))


class TestRun(unittest.TestCase):
    """What a run prints and how it ends; the proxy and its DeepSeek are started for real."""

    def measure(self, contest: Contest, scale: Scale) -> Iterator[Row]:
        self.contest = contest
        self.assertEqual(QUICK.requests, scale.requests)
        with contest.running():
            for target in contest.all:
                self.assertIsNotNone(target.cpu_seconds())
            contest.notes.append("a note")
            yield Row("first", "s", {OURS: Figure.of([1])})

    def assert_nothing_is_left(self) -> None:
        self.assertFalse(self.contest.place.exists())
        for target in self.contest.all:
            self.assertIsNone(target.cpu_seconds())
            with self.assertRaises(OSError):
                Client(target.url).ask(b"")

    def test_the_benchmark_prints_machine_columns_rows_and_notes(self) -> None:
        with patch.object(bench, "measure", self.measure), contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(0, bench.run(quick=True))
        machine, blank, columns, row, second_blank, note = out.getvalue().splitlines()
        self.assertEqual(("", "", "a note"), (blank, second_blank, note))
        self.assertRegex(machine, r"Python \d.* · \d+ cores · (not )?pinned.* · \d{4}-\d\d-\d\d · quick$")
        self.assertEqual(["direct", "this", "proxy"], columns.split()[-3:])
        self.assertEqual("first", row[:5])
        self.assert_nothing_is_left()

    def test_a_benchmark_that_is_told_to_end_leaves_no_process_file_or_pinning(self) -> None:
        before = None if not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)

        def measure(contest: Contest, scale: Scale) -> Iterator[Row]:
            for row in self.measure(contest, scale):
                yield row
                signal.raise_signal(signal.SIGTERM)

        stopped = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, stopped)
        with patch.object(bench, "measure", measure), contextlib.redirect_stdout(io.StringIO()):
            self.assertRaises(KeyboardInterrupt, main, ["--quick"])
        self.assert_nothing_is_left()
        self.assertEqual(before, before and os.sched_getaffinity(0))

    def test_a_wrong_flag_is_refused_with_what_is_wrong(self) -> None:
        for flags, words in (
            (["--command", "other"], "is not NAME=COMMAND"),
            (["--command", "other=run --port 1"], "is not NAME=COMMAND"),
            (["--command", f"{OURS}=x {{port}}"], "the same name"),
        ):
            with self.subTest(flags), contextlib.redirect_stderr(io.StringIO()) as errors:
                with self.assertRaises(SystemExit):
                    main(flags)
                self.assertIn(words, errors.getvalue())


class TestLoad(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = self.enterContext(FakeDeepSeek())
        self.client = self.enterContext(closing(Client(self.fake.url)))
        self.plain, self.stream = (post(self.fake.url, question("hello", stream=stream)) for stream in (False, True))

    def test_a_connection_is_kept_and_opened_again_after_the_server_has_closed_it(self) -> None:
        """As every client does: a server ends what is idle, while another column is waited for."""
        for request in (self.stream, self.plain):
            self.client.ask(request)
        self.assertEqual(1, self.fake.connections)
        self.fake.answer(Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
        self.client.ask(self.plain)
        self.assertTrue(select.select([self.client._socket], [], [], 5)[0])
        self.client.ask(self.plain)
        self.assertEqual(2, self.fake.connections)
        self.fake.answer(Raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"))
        self.assertGreater(requests_per_second(self.fake.url, 3, self.plain, 0.01), 0)

    def heard_of(self, *chunks: bytes) -> tuple[int, list[str]]:
        """What a crowd of one hears when three chunks are due."""
        self.fake.answer(Raw(b"".join(chunks)))
        result = run_crowd(Crowd(self.fake.url, self.stream, 1, 3, 100))
        return len(result.lags), result.failures

    def test_a_crowd_counts_every_chunk_once_and_says_what_failed(self) -> None:
        first, second, third = (marked_chunk(moment, True) for moment in (1, 2, 3))
        # As a proxy does that shows the thinking in the text.
        self.assertEqual((3, []), self.heard_of(HEAD, first + first, second, third, END))
        self.assertEqual((1, ["an answer was broken off"]), self.heard_of(HEAD, first))
        self.assertEqual((1, ["a stream ended after 1 of 3 chunks"]), self.heard_of(HEAD, first, END))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            result = run_crowd(Crowd(url, self.stream, 2, 1, 1000, grace=0.01))
        self.assertEqual(["nothing came in time"] * 2, result.failures)
        # What is merely late has not failed.
        self.fake.answer(Raw(HEAD + first, then_stall=True))
        result = run_crowd(Crowd(self.fake.url, self.stream, 1, 3, 1000, grace=0.5))
        self.assertEqual((1, []), (len(result.lags), result.failures))


class TestAgents(unittest.TestCase):
    # A question with all its calls, its answer, and the next question.
    TURNS = 12

    def setUp(self) -> None:
        self.fake = self.enterContext(FakeDeepSeek(responder=lambda payload: self.model.respond(payload)))
        self.fake.is_lenient = True

    def play(self, kind: Callable[[random.Random], AgentClient], url: str) -> ChatResult:
        self.model = Model(seed=1)
        self.fake.forget()
        return play(kind(random.Random(2)), Target("proxy", url), self.fake, self.model, self.TURNS)

    def test_every_agent_gets_its_answers_and_deepseek_all_reasoning_with_an_unchanged_prefix(self) -> None:
        proxy = self.enterContext(running_proxy(self.fake.url))
        for kind in CLIENTS:
            with self.subTest(kind.name):
                result = self.play(kind, proxy)
                self.assertEqual(("", self.TURNS, self.TURNS - 1), (result.error, result.answered, result.reasonings))
                changed = [share for share in result.prefixes if share < 1]
                self.assertEqual((self.TURNS - 1, kind is EditingCursor), (len(result.prefixes), len(changed) == 1))

    def test_the_table_has_a_row_for_each_agent(self) -> None:
        out = io.StringIO()
        with patch.object(agents, "CLIENTS", CLIENTS[:2]):
            self.assertEqual(0, agents.run((), out, turns=2))
        names = [line.split("|")[1].strip() for line in out.getvalue().splitlines()[2:4]]
        self.assertEqual([kind.name for kind in CLIENTS[:2]], names)
        self.assertIn("2 · 1 · 100.0 %", out.getvalue())

    def test_another_proxy_that_does_not_start_is_named(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(1, agents.main(["--command", f"other={sys.executable} -m no_such_module_here {{port}}"]))
        self.assertRegex(errors.getvalue(), "^bench: other did not start: .*no_such_module_here\n$")
