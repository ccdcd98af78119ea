"""The processes that listen on a port are found, and every pinned process gets back its cores."""

import os
import socket
import sys
import threading
import unittest

from tests.bench.machine import CpuPinning, find_listeners

ON_LINUX = unittest.skipUnless(sys.platform == "linux", "only Linux tells")


class TestListeners(unittest.TestCase):
    @ON_LINUX
    def test_the_process_behind_a_port_is_found_while_it_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://localhost:{server.getsockname()[1]}/v1"
            self.assertEqual(find_listeners(url), (os.getpid(),))
        self.assertEqual(find_listeners(url), ())

    def test_no_process_is_found_on_another_machine(self) -> None:
        self.assertEqual(find_listeners("http://192.0.2.1:80"), ())


class TestCpuPinning(unittest.TestCase):
    @ON_LINUX
    def test_every_process_gets_back_its_cores(self) -> None:
        before = os.sched_getaffinity(0)
        with CpuPinning() as pinning:
            if len(before) < 2:
                self.assertEqual(str(pinning), "not pinned")
                return
            load = os.sched_getaffinity(0)
            with pinning.on_measured_core():
                on_measured_core = os.sched_getaffinity(0)
            self.assertEqual((len(load), len(on_measured_core), os.sched_getaffinity(0)), (1, 1, load))
            self.assertFalse(load & on_measured_core)
            self.assertRegex(str(pinning), r"pinned: load on core \d+, proxies on core \d+")
        self.assertEqual(os.sched_getaffinity(0), before)

    @ON_LINUX
    def test_all_threads_of_a_process_are_pinned_and_freed(self) -> None:
        before = os.sched_getaffinity(0)
        is_pinned, was_seen, is_over = threading.Event(), threading.Event(), threading.Event()
        cores: list[set[int]] = []

        def look() -> None:
            is_pinned.wait()
            cores.append(os.sched_getaffinity(0))
            was_seen.set()
            is_over.wait()
            cores.append(os.sched_getaffinity(0))

        thread = threading.Thread(target=look)
        thread.start()
        with CpuPinning() as pinning:
            pinning.pin_measured(os.getpid())
            is_pinned.set()
            was_seen.wait()
        is_over.set()
        thread.join()
        self.assertEqual((len(cores[0]), cores[1]), (1, before))

    def test_pinning_moves_no_process_before_it_is_entered(self) -> None:
        pinning = CpuPinning()
        with pinning.on_measured_core():
            self.assertEqual(str(pinning), "not pinned")

    def test_pinning_ignores_a_process_that_is_gone(self) -> None:
        with CpuPinning() as pinning:
            # Beyond the largest process number there is.
            pinning.pin_measured(2**27)
