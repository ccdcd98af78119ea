"""What the process says about itself."""

import os
import sys
import unittest
from unittest import mock

from deepseek_cursor_proxy.admin import process


@unittest.skipUnless(sys.platform == "linux", "only Linux tells all of it")
class ProcessTest(unittest.TestCase):
    def test_memory_and_cpu_are_those_of_this_process(self) -> None:
        use = process.measure()
        self.assertGreater(use.cpu_seconds, 0)
        assert use.memory_bytes is not None
        self.assertTrue(5e6 < use.memory_bytes < 5e9, use.memory_bytes)
        assert use.most_files is None or use.open_files is not None
        self.assertIsNotNone(use.open_files)

    def test_open_files_are_counted_with_old_and_new_kernels(self) -> None:
        for has_count in {False, process._HAS_FD_COUNT}:
            with self.subTest(has_count=has_count), mock.patch.object(process, "_HAS_FD_COUNT", has_count):
                before = process.measure().open_files
                reader, writer = os.pipe()
                after = process.measure().open_files
                os.close(reader)
                os.close(writer)
                assert before is not None
                self.assertEqual(before + 2, after)
