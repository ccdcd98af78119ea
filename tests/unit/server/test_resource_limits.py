import platform
import subprocess
import sys
import sysconfig
import threading
import unittest
from unittest import mock

from deepseek_cursor_proxy.server import resource_limits as limits
from tests.support.program import WINDOWS

# Five buffers of 0.7 MB, used and freed again and again as a long chat does.
_CHURN = """
import resource
from deepseek_cursor_proxy.server import resource_limits
resource_limits.keep_freed_memory()
def use():
    for number in range(5):
        yield b"x" * (700_000 + number)
for _ in range(3):
    list(use())
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    list(use())
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# What a large request takes on the thread of its client, and one small value of it that stays.
_LARGE = """
import os, threading
from deepseek_cursor_proxy.server import resource_limits
resource_limits.keep_freed_memory()
kept = []
def use():
    texts = [*[b"x" * (100_000 + number) for number in range(300)], b"x" * 30_000_000]
    kept.append(texts[150])
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
for number in range(6):
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    resource_limits.give_back_memory()
    if not number:
        before = resident()
print(resident() - before)
"""


@unittest.skipUnless(platform.libc_ver()[0] == "glibc", "other allocators have no such limit")
class TestFreedMemory(unittest.TestCase):
    def test_buffers_of_a_long_chat_are_not_given_back_to_the_system(self) -> None:
        faults = subprocess.run([sys.executable, "-c", _CHURN], capture_output=True, text=True, check=True).stdout
        # A page fault for each 4 kB that is taken anew: 17,000.
        self.assertLess(int(faults), 1000)

    @unittest.skipIf(sysconfig.get_config_var("Py_GIL_DISABLED"), "free-threaded Python has an allocator of its own")
    def test_memory_of_a_large_request_is_given_back_to_the_system(self) -> None:
        left = subprocess.run([sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True).stdout
        self.assertLess(int(left), 22_000_000)


class TestOtherAllocators(unittest.TestCase):
    def test_a_system_that_cannot_be_asked_for_it_gives_nothing_back(self) -> None:
        """MemoryError: importing ctypes where memory may not be executable."""
        with mock.patch.dict(sys.modules, {"ctypes": None}):
            limits.give_back_memory()
        for error in (OSError, AttributeError, TypeError, MemoryError):
            with self.subTest(error), mock.patch("ctypes.CDLL", side_effect=error) as open_library:
                limits.give_back_memory()
                open_library.assert_called_once_with(None)


@unittest.skipIf(WINDOWS, "limits of a process are a POSIX thing")
class TestLimits(unittest.TestCase):
    def setUp(self) -> None:
        self.system = mock.Mock(RLIM_INFINITY=-1, RLIMIT_NOFILE="files", RLIMIT_STACK="stack")
        self.enterContext(mock.patch.object(limits, "resource", self.system))
        self.stack_size = self.enterContext(mock.patch.object(threading, "stack_size", return_value=0))

    def test_the_limit_of_open_files_is_raised_and_never_lowered(self) -> None:
        for soft, hard, expected in ((256, -1, 2112), (256, 1000, 1000), (5000, 5000, None), (-1, -1, None)):
            self.system.setrlimit.reset_mock()
            self.system.getrlimit.return_value = (soft, hard)
            limits.raise_limits(1024)
            expected_calls = [] if expected is None else [mock.call("files", (expected, hard))]
            self.assertEqual(expected_calls, self.system.setrlimit.mock_calls)

    def test_the_limit_of_open_files_is_raised_to_open_max_on_macos(self) -> None:
        def refuse(_: object, limits: tuple[int, int]) -> None:
            if limits[0] > 10_240:
                raise ValueError("not allowed to raise maximum limit")

        self.system.getrlimit.return_value = (256, -1)
        self.system.setrlimit.side_effect = refuse
        limits.raise_descriptors(20_000)
        self.assertEqual(mock.call("files", (10_240, -1)), self.system.setrlimit.mock_calls[-1])

    def test_thread_stacks_are_raised_and_never_lowered(self) -> None:
        for soft, expected in ((256 * 1024, 2**23), (-1, 2**23), (2**26, 2**26)):
            self.system.getrlimit.return_value = (soft, -1)
            limits.raise_limits(1)
            self.assertEqual(expected, self.stack_size.call_args.args[0])

    def test_a_system_that_refuses_higher_limits_raises_nothing(self) -> None:
        self.system.getrlimit.return_value = (100, 100)
        self.system.setrlimit.side_effect = ValueError("not allowed")
        self.stack_size.side_effect = lambda *size: (_ for _ in ()).throw(ValueError("invalid"))
        limits.raise_limits(1024)
