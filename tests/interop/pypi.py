"""Clients from PyPI that need an environment of their own, in a directory that is gone when their tests have run.

Where pip has no way to its index, the tests are skipped, and say why.
"""

import functools
import subprocess
import sys
import unittest
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

INSTALL_SECONDS = 240


@functools.cache
def installed(*packages: str) -> Path:
    """The directory that holds their commands. Called before the tests of a module; raises SkipTest."""
    names = " and ".join(packages)
    place = Path(unittest.enterModuleContext(TemporaryDirectory(prefix="agents-")))
    # Another module installs them anew.
    unittest.addModuleCleanup(installed.cache_clear)
    venv.create(place, with_pip=True)
    commands = place / ("Scripts" if sys.platform == "win32" else "bin")
    options = ("--disable-pip-version-check", "--no-input", "--no-compile", "--retries", "1")
    command = [commands / "python", "-m", "pip", "install", "--quiet", *options, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise unittest.SkipTest(f"pip has not installed {names} within {INSTALL_SECONDS} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise unittest.SkipTest(f"pip cannot install {names} here: {''.join(last)}")
    return commands
