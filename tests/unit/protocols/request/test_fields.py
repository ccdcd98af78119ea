"""The size estimate of a value is never much too small, because caches are bounded by it."""

import gc
import json
import tracemalloc
import unittest
from sys import maxsize

from deepseek_cursor_proxy.protocols.request.fields import memory


class TestMemory(unittest.TestCase):
    def test_the_memory_estimate_of_a_value_is_not_too_small(self) -> None:
        for name, written in {
            "a message": json.dumps({"role": "user", "content": "words " * 500}),
            "a long name": json.dumps({"n" * 50_000: 1}),
            "many names": json.dumps({f"name {number}": None for number in range(5000)}),
            "many lists": json.dumps({"content": [[] for _ in range(5000)]}),
            "many objects": json.dumps({"content": [{} for _ in range(5000)]}),
            "wide characters": json.dumps({"content": [{"text": "\U0001f600" * 20_000}]}),
            "numbers": json.dumps([number + 0.5 for number in range(5000)]),
        }.items():
            with self.subTest(name):
                gc.collect()
                tracemalloc.start()
                self.addCleanup(tracemalloc.stop)
                value = json.loads(written)
                taken, _ = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                self.assertGreater(memory(value), 0.9 * taken)

    def test_a_huge_value_is_not_measured_to_its_end(self) -> None:
        self.assertEqual(maxsize, memory({"content": "x" * 5_000_000}))
        self.assertEqual(maxsize, memory({"content": [None] * 1_000_000}))
