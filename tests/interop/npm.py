"""Clients from npm, installed into a directory that is gone when the module of tests that wants them has run.

Where there is no npm, or no way to its registry, the tests are skipped, and say why.
"""

import functools
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

INSTALL_SECONDS = 120

_OUT_OF_REACH = re.compile(r"code (ENOTFOUND|EAI_AGAIN|ECONN\w+|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT)")


@functools.cache
def installed(*packages: str) -> Path:
    """The directory that holds their commands. Called before the tests of a module; raises SkipTest."""
    npm, names = shutil.which("npm"), " and ".join(packages)
    if npm is None or shutil.which("node") is None:
        raise unittest.SkipTest(f"npm and node are not on the PATH: {names} cannot be installed")
    place = Path(unittest.enterModuleContext(TemporaryDirectory(prefix="agents-")))
    # Another module installs them anew.
    unittest.addModuleCleanup(installed.cache_clear)
    # No install scripts: nobody here has read them. By itself npm tries a dead registry for minutes.
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
    command = [npm, "install", "--prefix", str(place), *options, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise unittest.SkipTest(f"npm has not installed {names} within {INSTALL_SECONDS} s") from None
    if done.returncode and (found := _OUT_OF_REACH.search(done.stderr)):
        raise unittest.SkipTest(f"npm cannot reach its registry to install {names}: {found[1]}")
    if done.returncode:
        raise AssertionError(f"npm ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return place / "node_modules" / ".bin"
