"""The demo, which is a whole chat, on a Python without the functions that other systems lack."""

import json
import subprocess
import sys
import unittest

from tests.support.systems import ROOT

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
PYPY = {"select": ("EPOLLRDHUP", "POLLRDHUP")}

WITHOUT = """
import importlib, json, runpy, sys
platform, missing = sys.argv[1:]
for module, names in json.loads(missing).items():
    if not names:
        sys.modules[module] = None
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)
sys.platform = platform
sys.argv = ["deepseek-cursor-proxy", "demo"]
runpy.run_module("deepseek_cursor_proxy", run_name="__main__")
"""


@unittest.skipUnless(sys.platform == "linux", "the other systems lack them by themselves")
class MissingFunctionsTest(unittest.TestCase):
    def test_a_chat_works_without_what_other_systems_lack(self) -> None:
        # Their own names would have the standard library load modules of theirs.
        for platform, missing in (("like-windows", WINDOWS), ("like-macos", MACOS), ("linux", PYPY)):
            with self.subTest(platform):
                command = [sys.executable, "-c", WITHOUT, platform, json.dumps(missing)]
                demo = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120)
                self.assertEqual((0, ""), (demo.returncode, demo.stderr))
                self.assertIn("4 of 4 requests accepted, 6 of 6 reasonings put back exactly.", demo.stdout)
