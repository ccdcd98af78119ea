"""systemd reads the unit of the service and finds nothing wrong with it."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from deepseek_cursor_proxy.cli.service import Launch, systemd_unit
from tests.interop.command_line import RUN_SECONDS

ANALYZE = shutil.which("systemd-analyze")


@unittest.skipIf(ANALYZE is None, "there is no systemd")
class SystemdTest(unittest.TestCase):
    def test_the_unit_is_valid_with_any_words(self) -> None:
        words = ("--model=a b", '--x="quoted"', "--y=50%", "--z=$HOME", "--w=<&>'", "--v=back\\slash")
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for flags, place in (((), ""), (words, str(folder))):
            launch = Launch(sys.executable, ("-m", "deepseek_cursor_proxy", "serve", *flags), place)
            path = folder / "deepseek-cursor-proxy.service"
            path.write_text(systemd_unit(launch), encoding="utf-8")
            # It needs a home and a place for its sockets, though it starts nothing.
            environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
            command = [ANALYZE or "", "--user", "verify", "--man=no", str(path)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=RUN_SECONDS
            )
            about = [line for line in done.stderr.splitlines() if path.name in line]
            self.assertEqual((0, []), (done.returncode, about), done.stderr)
