"""The demo, which is a whole chat, and the tests on a Python without the functions that others lack."""

import json
import subprocess
import sys
import unittest

from tests.support.systems import ROOT
from tests.support.width import some, width

# Names that are missing there, by module; a module without names is missing itself.
WINDOWS: dict[str, tuple[str, ...]] = {
    "fcntl": (),
    "resource": (),
    "termios": (),
    "pwd": (),
    "os": (
        *("fork", "fchmod", "fchown", "chown", "link", "killpg", "getpgid", "setsid", "getuid", "geteuid", "mkfifo"),
        *("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "sched_setaffinity", "sched_getaffinity", "openpty", "uname"),
    ),
    "select": ("epoll", "poll", "POLLIN", "POLLOUT", "POLLRDHUP", "POLLHUP", "POLLERR", "EPOLLIN", "EPOLLRDHUP"),
    "signal": ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGPIPE", "alarm", "pause", "setitimer", "pthread_sigmask"),
    # Not AF_UNIX: without it, socketpair() works on Windows alone.
    "socket": ("MSG_DONTWAIT", "MSG_NOSIGNAL", "SO_REUSEPORT", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE"),
}
MACOS = {
    "select": ("epoll", "POLLRDHUP", "EPOLLIN", "EPOLLRDHUP"),
    "os": ("sched_setaffinity", "sched_getaffinity"),
    "socket": ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "MSG_NOSIGNAL"),
}
PYPY: dict[str, tuple[str, ...]] = {
    "select": ("EPOLLRDHUP", "POLLRDHUP"), "tracemalloc": (), "gc": ("freeze", "unfreeze", "get_freeze_count"),
}  # fmt: skip

WITHOUT = """
import importlib, json, runpy, sys
platform, missing, module, *arguments = sys.argv[1:]
for each, names in json.loads(missing).items():
    if not names:
        sys.modules[each] = None
    for name in names:
        vars(importlib.import_module(each)).pop(name, None)
sys.platform = platform
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__")
"""


@unittest.skipUnless(sys.platform == "linux", "the other systems lack them by themselves")
class MissingFunctionsTest(unittest.TestCase):
    def run_without(
        self, missing: dict[str, tuple[str, ...]], platform: str, *command: str
    ) -> "subprocess.CompletedProcess[str]":
        command = (sys.executable, "-c", WITHOUT, platform, json.dumps(missing), *command)
        return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120)

    def test_a_chat_works_without_what_other_systems_lack(self) -> None:
        # Their own names would have the standard library load modules of theirs.
        for platform, missing in some((("like-windows", WINDOWS), ("like-macos", MACOS), ("linux", PYPY)), 3):
            with self.subTest(platform):
                demo = self.run_without(missing, platform, "deepseek_cursor_proxy", "demo")
                self.assertEqual((0, ""), (demo.returncode, demo.stderr))
                self.assertIn("4 of 4 requests accepted, 6 of 6 reasonings restored exactly.", demo.stdout)

    def test_every_test_loads_without_what_pypy_lacks(self) -> None:
        """A module that does not load is an error whatever the name asked for."""
        pattern = ("discover", "-t", ".", "-s", "tests/unit/net") if width(True, False) else ()
        tests = self.run_without(PYPY, "linux", "unittest", *pattern, "-k", "a name that no test has")
        self.assertRegex(tests.stderr, r"\A\n-+\nRan 0 tests in .+\n\n(OK|NO TESTS RAN)\n\Z")
