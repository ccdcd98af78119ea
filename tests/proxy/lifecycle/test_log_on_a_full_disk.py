"""A log on a full disk does not keep the proxy from serving."""

import os
import signal
import unittest

from tests.support.program import ServeTest


@unittest.skipIf(os.name == "nt", "limits are a POSIX thing")
class TestFullDisk(ServeTest):
    def test_the_proxy_serves_with_its_log_on_a_full_disk(self) -> None:
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Inherited by the process, whose stderr is a file; this one writes nothing meanwhile.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            process = self.launch("--port", "0")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        process.read_until("Stop with Ctrl-C.\n")
        process.send(signal.SIGTERM)
        self.expect_stopped(process)
        self.assertEqual("", process.errors)
