"""Each measurement yields its rows, and a run prints them and leaves nothing behind; never how fast anything is."""

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import unittest
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests import bench
from tests.bench import Options, apis, calls, chats, observation, requests
from tests.bench import streams as benchmark_streams
from tests.bench.chats import Chat
from tests.bench.load_clients import Client, get
from tests.bench.load_upstream import LoadUpstream
from tests.bench.machine import CpuPinning
from tests.bench.others import OtherCommand
from tests.bench.rounds import Contest, Target, start_proxy
from tests.bench.scale import QUICK, Scale
from tests.bench.table import DIRECT, OURS, Figure, Row
from tests.support.processes import BenchmarkFailed, Server
from tests.support.systems import ROOT

ONCE = dict.fromkeys(("paced_rounds", "crowd_rounds", "turns_measured", "chats", "first_seen", "starts"), 1)
TWICE = dict.fromkeys(("streams", "stored_turn_count", "clients", "bursts"), 2)
COUNTS = {
    "concurrent": 2,
    "concurrent_turns": 1,
    "counted": 2,
    "requests": 4,
    "paced_chunks": 3,
    "chunks": 5,
    "rows": 3,
    "chain_length": 4,
    "callers": 6,
}
TINY = Scale(**ONCE, **TWICE, **COUNTS, crowds=(1, 2), crowd_seconds=0.1, turns=(1, 2), burst_seconds=0.01)


class LabTest(unittest.TestCase):
    """The benchmark's DeepSeek in this process, which also stands in for proxies that remember nothing."""

    def setUp(self) -> None:
        threads = threading.active_count()
        self.addCleanup(lambda: self.assertEqual(threading.active_count(), threads))
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        upstream = self.enterContext(LoadUpstream())
        self.upstream = Server(upstream.url, os.getpid())
        self.direct = Target(DIRECT, upstream.url, (self.upstream,))
        self.ours = Target(OURS, upstream.url, (self.upstream,))
        self.other = Target("other", upstream.url)

    def assert_rows(self, rows: Iterator[Row], *measures: str) -> list[Row]:
        found = list(rows)
        self.assertEqual([row.measure.strip() for row in found], list(measures))
        for row in found:
            # Only Linux tells what a process uses.
            words = ("CPU", "memory", "threads", "exponent", "seen", "of it", "against")
            self.assertTrue(row.figures.get(OURS) or any(word in row.measure for word in words), row)
        return found


class TestMeasures(LabTest):
    def setUp(self) -> None:
        super().setUp()
        self.contest = Contest(self.direct, self.ours, (self.other,))

    def test_small_requests_yield_their_rows(self) -> None:
        rows = self.assert_rows(
            requests.small_requests(self.contest, TINY),
            "small request, keep-alive: answer p50",
            "added p50",
            "added p99",
            "CPU per request (mean)",
            "small request on a new connection: added p50",
            "CPU per request (mean)",
        )
        self.assertEqual(set(rows[0].figures), {DIRECT, OURS, "other"})
        self.assertEqual(set(rows[1].figures), {OURS, "other"})
        # Nothing is known about the other's processes.
        self.assertIsNone(rows[-1].figures["other"])

    def test_the_other_apis_yield_their_rows(self) -> None:
        chain = ("response 1 of a chain: CPU (mean)", "response 4 of it (mean)")
        chain += ("growth with the length of its input (exponent)",)
        streamed = ("{}: first stream event: added p50", "{}: CPU per 10,000 chunks (mean)", "against the chat path")
        self.assert_rows(
            apis.other_apis(self.contest, TINY),
            *(name.format(api) for api in ("Responses", "Messages") for name in streamed),
            *(chain if self.upstream.cpu_seconds() is not None else ()),
            "6 callers at 2 slots: served",
            "furthest from its turn, of all callers",
            "slots still taken at the end",
        )

    def test_first_events_many_clients_and_streams_yield_their_rows(self) -> None:
        paced = ("paced 200 chunks/s: chunk delay p50", "added p50", "CPU per chunk (mean)")
        for measure, *expected in (
            (requests.first_events, "first stream event: added p50", "CPU per stream of 8 chunks (mean)"),
            (requests.throughput, "2 keep-alive clients: small requests", "CPU per request (mean)"),
            (benchmark_streams.paced_stream, *paced),
            (benchmark_streams.unpaced_stream, "unpaced stream of 5 chunks", "CPU per 10,000 chunks (mean)"),
        ):
            with self.subTest(measure.__name__):
                self.assert_rows(measure(self.contest, TINY), *expected)

    def test_crowds_yield_their_rows(self) -> None:
        each = ("share of direct", "failed streams", "lag p99", "CPU per chunk (mean)")
        each += ("memory meanwhile", "threads meanwhile", "memory per stream")
        names = (f"{streams} streams x 20 chunks/s: delivered" for streams in TINY.crowds)
        rows = self.assert_rows(
            benchmark_streams.crowds(self.contest, TINY), *(name for first in names for name in (first, *each))
        )
        for row in rows:
            if row.measure.strip() in ("share of direct", "failed streams"):
                values = {name: figure and figure.value for name, figure in row.figures.items()}
                self.assertEqual(set(values.values()), {1 if "share" in row.measure else 0}, values)

    def test_failed_streams_are_counted_and_noted(self) -> None:
        nobody = Target("other", "http://127.0.0.1:9")
        contest = Contest(self.direct, self.ours, (nobody,))
        rows = {row.measure.strip(): row for row in benchmark_streams.crowds(contest, TINY)}
        figure = rows["failed streams"].figures["other"]
        assert figure is not None
        self.assertEqual(figure.value, TINY.crowds[-1])
        self.assertIn("other: 2 streams: 2 failed, 2 with: ", contest.notes[-1])


class TestMemoryMeasures(LabTest):
    """With this proxy as a process of its own, beside one that restores nothing."""

    def setUp(self) -> None:
        super().setUp()
        self.store = self.place / "store.sqlite3"
        flags = ("--reasoning-content-path", str(self.store))
        self.proxy = self.enterContext(start_proxy(CpuPinning(), self.upstream, self.place / "proxy", *flags))
        self.contest = Contest(self.direct, self.proxy, (self.other,))
        self.enterContext(patch.object(calls, "_SETTLING_SECONDS", 0.02))
        self.enterContext(patch.object(requests, "_IDLE_SECONDS", 0.0))

    def test_growing_chats_yield_their_rows(self) -> None:
        self.assert_rows(
            chats.growing_chats(self.contest, TINY, self.store),
            *(f"{turns} cached tool turns: CPU per request (mean)" for turns in (1, 2)),
            "growth exponent, 1 to 2 turns",
            *(f"{turns} turns, first time seen by this process (mean)" for turns in (1, 2)),
            "growth exponent, first time seen, 1 to 2 turns",
        )
        note = "other: cached tool turns: only 0 of 1 turns reached DeepSeek with their reasoning"
        self.assertEqual(self.contest.notes[0], note)

    def test_stored_turns_and_startup_yield_their_rows(self) -> None:
        names = ("storing a tool-call turn, small store: added p50", "beside 3 rows: added p50")
        names_with_cpu = [part for name in names for part in (name, "CPU per turn (mean)")]
        self.assert_rows(chats.stored_turns(self.contest, TINY, self.place), *names_with_cpu)
        startup = requests.startup(self.contest, TINY, self.place / "started")
        names = (
            "warm start to first /v1/models answer",
            "CPU until then",
            "idle memory",
            "cold start: no bytecode yet",
        )
        self.assert_rows(startup, *names)

    def test_chats_at_once_and_calls_yield_their_rows(self) -> None:
        self.assert_rows(
            chats.concurrent_chats(self.contest, TINY, self.place / "concurrent"),
            "2 chats of 1 tool turns, one after another: CPU per request (mean)",
            "in turns: CPU per request (mean)",
            "against one after another",
        )
        units = ("small request", "chunk of a paced stream", "request of a chat with 2 tool turns")
        names = [name for unit in units for name in (f"calls of Python functions per {unit}", "of builtin functions")]
        rows = self.assert_rows(calls.counted_calls(self.contest, TINY), *names)
        counts = [row.figures[OURS] for row in rows]
        self.assertTrue(all(count is not None and 5 < count.value < 20_000 for count in counts), counts)

    def test_another_proxy_is_started_by_its_command_and_ended(self) -> None:
        text = f"{sys.executable} -m deepseek_cursor_proxy --port {{port}} --base-url {{upstream}}"
        command = OtherCommand("other", text, str(ROOT))
        with command.running(self.upstream, self.place / "other", CpuPinning()) as other:
            with closing(Client(other.url)) as client:
                client.ask(get(other.url, "/models"))
        with self.assertRaises(OSError):
            Client(other.url).ask(b"")
        missing = OtherCommand("none", f"{sys.executable} -m no_such_module_here {{port}}{{upstream}}")
        with self.assertRaisesRegex(BenchmarkFailed, "none did not start: .*no_such_module_here"):
            with missing.running(self.upstream, self.place / "none", CpuPinning()):
                self.fail("it did not start")

    def test_observation_yields_its_rows(self) -> None:
        self.assert_rows(
            observation.observed_costs(self.contest, TINY, self.place),
            "observed, against not: CPU per small request",
            "CPU per chunk",
            "scrape of /metrics during 1 streams: p50",
            "p95",
            "scrape of /metrics during 2 streams: p50",
            "p95",
            "3 dashboards open, against none: CPU per small request",
        )


class TestChats(LabTest):
    def test_a_chat_has_the_size_it_names(self) -> None:
        chat = Chat(1)
        with closing(Client(self.direct.url)) as client:
            for _ in range(3):
                chat.play(client)
        body = json.loads(chat.body())
        self.assertEqual({len(json.dumps(tool)) // 1000 for tool in body["tools"]}, {1})
        self.assertEqual(len(body["tools"]), 40)
        self.assertEqual([m["role"] for m in body["messages"]], ["system", "user"] + ["assistant", "tool"] * 3)
        for answer, result in zip(body["messages"][2::2], body["messages"][3::2], strict=True):
            self.assertNotIn("reasoning_content", answer)
            self.assertEqual(result["tool_call_id"], answer["tool_calls"][0]["id"])
            self.assertTrue(2000 <= len(result["content"]) <= 4000)

    def test_a_proxy_that_restores_nothing_fails_the_benchmark(self) -> None:
        with self.assertRaisesRegex(BenchmarkFailed, "only 0 of 1 turns"):
            list(chats.growing_chats(Contest(self.direct, self.ours), TINY, self.place / "store"))

    def test_another_proxy_that_takes_too_long_is_dropped(self) -> None:
        contest = Contest(self.direct, self.ours, (self.other,))
        grown = chats._GrowthSamples({"other": {}})
        is_whole = chats._measure_growth(contest, Scale(chat_patience=-1), self.other, Chat(1), grown)
        self.assertFalse(is_whole)
        self.assertEqual(contest.notes, ["other: a growing chat: given up after -1 s at 1 turns"])
        self.assertEqual(grown.cpu, {"other": {}})


class TestRun(unittest.TestCase):
    """What a run prints and how it ends; the proxy and its DeepSeek are started for real."""

    def run_with(self, measure: Any, options: Options = Options(quick=True)) -> tuple[int, str, str]:  # noqa: B008
        out = io.StringIO()
        with patch.object(bench, "measure", measure), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = bench.run(options, out=out)
        return code, out.getvalue(), errors.getvalue()

    @staticmethod
    def two_rows(contest: Contest, scale: Scale, place: Path) -> Iterator[Row]:
        contest.notes.append("a note")
        assert scale.requests == QUICK.requests
        yield from (Row(f"row {number}", "s", {OURS: Figure.of([number])}) for number in (1, 2))

    def test_the_benchmark_prints_machine_columns_rows_and_notes(self) -> None:
        code, out, errors = self.run_with(self.two_rows)
        machine, blank, columns, *rows, second_blank, note = out.splitlines()
        self.assertEqual((code, errors, blank, second_blank, note), (0, "", "", "", "a note"))
        self.assertRegex(machine, r"Python \d.* · \d+ cores · (not )?pinned.* · \d{4}-\d\d-\d\d · quick$")
        self.assertEqual(columns.split()[-3:], ["direct", "this", "proxy"])
        self.assertEqual([row[:5] for row in rows], ["row 1", "row 2"])

    def test_the_json_of_the_benchmark_has_the_same_rows(self) -> None:
        code, out, _ = self.run_with(self.two_rows, Options(quick=True, as_json=True))
        told = json.loads(out)
        self.assertEqual((code, told["quick"], told["columns"]), (0, True, [DIRECT, OURS]))
        self.assertEqual([row["measure"] for row in told["rows"]], ["row 1", "row 2"])
        self.assertEqual(told["notes"][-1], "a note")
        self.assertTrue(told["machine"] and told["python"] and told["date"] and told["pinning"])

    def test_crowds_without_enough_descriptors_are_left_out_and_noted(self) -> None:
        """macOS allows 256 by default."""
        with patch.object(bench, "raise_descriptors", return_value=256):
            scale, notes = bench._fit_to_limits(QUICK)
        self.assertEqual((100,), scale.crowds)
        self.assertEqual(1, len(notes))
        self.assertIn("400 streams: not measured, a process may open 256 files here", notes[0])

    def test_a_failed_benchmark_is_one_line_and_exit_code_1(self) -> None:
        def measure(contest: Contest, scale: Scale, place: Path) -> Iterator[Row]:
            yield Row("first", "s", {})
            raise BenchmarkFailed("the proxy\ndid not answer")

        code, _, errors = self.run_with(measure)
        self.assertEqual((code, errors), (1, "bench: the proxy did not answer\n"))

    def test_another_proxy_is_measured_once_it_answers(self) -> None:
        seen: list[tuple[str, str]] = []

        def measure(contest: Contest, scale: Scale, place: Path) -> Iterator[Row]:
            seen.extend((target.name, target.url) for target in contest.others)
            yield Row("first", "s", {})

        with LoadUpstream() as other:
            # Its own path is taken as it is; without one the usual one is meant.
            others = (("a", other.url), ("b", f"{other.url}/v2/"))
            code, out, _ = self.run_with(measure, Options(quick=True, others=others))
        self.assertEqual((code, seen), (0, [("a", f"{other.url}/v1"), ("b", f"{other.url}/v2")]))
        self.assertIn("ours / b", out)

    def test_another_proxy_that_does_not_answer_is_an_error_with_the_remedy(self) -> None:
        code, _, errors = self.run_with(self.two_rows, Options(quick=True, others=(("a", "http://127.0.0.1:9"),)))
        self.assertEqual(code, 1)
        remedy = r"start it with http://127\.0\.0\.1:\d+ for [^\n]+\n\Z"
        self.assertRegex(errors, r"\Abench: a does not answer at .*; " + remedy)

    def test_an_interrupted_benchmark_ends_its_processes_and_leaves_no_file(self) -> None:
        before = None if not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)
        for end, raised in (
            (lambda: (_ for _ in ()).throw(KeyboardInterrupt), KeyboardInterrupt),
            (_terminate, SystemExit),
        ):
            left: list[tuple[Path, Contest]] = []

            def measure(contest: Contest, scale: Scale, place: Path, end: Any = end, left: Any = left) -> Iterator[Row]:
                left.append((place, contest))
                yield Row("first", "s", {})
                next(iter(end()))

            with self.assertRaises(raised):
                self.run_with(measure)
            [(place, contest)] = left
            self.assertFalse(place.exists())
            for target in contest.all:
                self.assertIsNone(target.cpu_seconds())
                with self.assertRaises(OSError):
                    Client(target.url).ask(b"")
        self.assertEqual(before, before and os.sched_getaffinity(0))


def _terminate() -> Iterator[None]:
    signal.raise_signal(signal.SIGTERM)
    yield
