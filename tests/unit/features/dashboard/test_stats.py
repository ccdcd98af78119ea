import contextlib
import os
import sys
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.errors import UpstreamDropped
from deepseek_cursor_proxy.exchange.feature import Recent
from deepseek_cursor_proxy.features.dashboard import stats


class FakeUpstream:
    def __init__(self) -> None:
        self.reached_at = float("-inf")
        self.probes = 0
        self.down: tuple[str, ...] = ()

    def probe(self, destination: str) -> None:
        self.probes += 1
        if destination in self.down:
            raise UpstreamDropped(f"{destination} cannot be reached.")


class ReadinessTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.upstream = FakeUpstream()
        self.database = SimpleNamespace(fault=None)
        self.upstreams = SimpleNamespace(all=(SimpleNamespace(destination=lambda path: f"one{path}"),))
        self.services: Any = SimpleNamespace(
            upstreams=self.upstreams,
            upstream_client=self.upstream,
            reasoning_store=SimpleNamespace(database=self.database),
        )
        self.probes = Recent(10.0, lambda: self.now)

    def reasons(self) -> list[str]:
        return stats.why_not_ready(self.services, self.probes)

    def test_a_call_of_the_last_minute_makes_a_probe_needless(self) -> None:
        self.upstream.reached_at = self.now - 59
        self.assertEqual(([], 0), (self.reasons(), self.upstream.probes))
        self.now += 2
        self.assertEqual(([], 1), (self.reasons(), self.upstream.probes))

    def test_a_probe_counts_for_ten_seconds_good_or_bad(self) -> None:
        self.upstream.down = ("one",)
        for _ in range(5):
            self.assertEqual(["one cannot be reached."], self.reasons())
        self.assertEqual(1, self.upstream.probes)
        self.upstream.down = ()
        self.now += 10
        self.assertEqual(([], 2), (self.reasons(), self.upstream.probes))

    def test_of_several_upstreams_one_is_enough(self) -> None:
        self.upstreams.all += (SimpleNamespace(destination=lambda path: f"two{path}"),)
        self.upstream.down = ("one",)
        self.assertEqual(([], 2), (self.reasons(), self.upstream.probes))
        self.upstream.down = ("one", "two")
        self.now += 10
        self.assertEqual(["one cannot be reached. two cannot be reached."], self.reasons())

    def test_a_fault_of_the_store_is_a_reason(self) -> None:
        self.database.fault = ValueError("the disk is full; free some space")
        self.assertEqual(["the store cannot be used: the disk is full; free some space"], self.reasons())


@unittest.skipUnless(sys.platform == "linux", "only Linux tells all of it")
class ProcessTest(unittest.TestCase):
    def test_the_memory_is_that_of_this_process(self) -> None:
        memory = stats.memory_bytes()
        assert memory is not None
        self.assertTrue(5e6 < memory < 5e9, memory)

    def test_open_files_are_counted_with_old_and_new_kernels(self) -> None:
        new = contextlib.nullcontext()
        old = mock.patch.object(stats.os, "stat", return_value=SimpleNamespace(st_size=0))
        for kernel in (new, old):
            with self.subTest(), kernel:
                before = stats.open_files()
                reader, writer = os.pipe()
                after = stats.open_files()
                os.close(reader)
                os.close(writer)
                assert before is not None
                self.assertEqual(before + 2, after)
