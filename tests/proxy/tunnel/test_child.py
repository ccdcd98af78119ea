"""A child must not outlive the process that started it, however that one ends."""

import contextlib
import socket
import subprocess
import sys
import unittest

from deepseek_cursor_proxy.cli.tunnel import Child
from tests.support.systems import ROOT

PATIENCE = 20.0

PARENT = """
import sys, time
from deepseek_cursor_proxy.cli.tunnel import Child
child = Child(sys.argv[1:], lambda line: None)
print(flush=True)
time.sleep(60)
"""
# Its connection ends with it, which is seen from outside without its process id.
CHILD = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as sock:
    sock.sendall(b"x")
    sock.recv(1)
"""
WRAPPER = "import subprocess, sys; subprocess.run(sys.argv[1:])"
RUN = (sys.executable, "-E", "-S", "-c")


class ChildTest(unittest.TestCase):
    def setUp(self) -> None:
        self.listener = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.listener.settimeout(PATIENCE)
        self.child = (*RUN, CHILD, str(self.listener.getsockname()[1]))

    def connected(self) -> socket.socket:
        """The connection of a child that has just begun to run."""
        sock = self.enterContext(self.listener.accept()[0])
        sock.settimeout(PATIENCE)
        self.assertEqual(b"x", sock.recv(1))
        return sock

    def expect_gone(self, sock: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            self.assertEqual(b"", sock.recv(1))

    def test_a_child_and_those_of_a_wrapper_script_end_when_our_process_is_killed(self) -> None:
        for wrapper in ((), (*RUN, WRAPPER)):
            command = [sys.executable, "-c", PARENT, *wrapper, *self.child]
            with self.subTest(wrapper), subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as parent:
                sock = self.connected()
                # A child may run before start() has returned.
                assert parent.stdout is not None
                parent.stdout.readline()
                parent.kill()
                self.expect_gone(sock)

    def test_ending_a_child_ends_its_own_children(self) -> None:
        lines: list[str] = []
        child = Child((*RUN, WRAPPER, *self.child), lines.append)
        sock = self.connected()
        child.close()
        self.expect_gone(sock)
        self.assertEqual([""], lines)
