"""Programs from npm, PyPI and Debian for the tests: each is installed once for a run, by the process that asks first.

They are in a folder that is gone when the run ends; nothing is installed on the machine, and no root is needed. Where
there is no way to a package, the tests that need it are skipped, and say why.
"""

import atexit
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import venv
from collections.abc import Callable
from pathlib import Path

# Tells the processes of a run where the folder is.
FOLDER = "INTEROP_PACKAGES"
INSTALL_SECONDS = 600
# No install scripts: nobody here has read them. By itself npm tries a dead registry for minutes.
_NPM = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
_PIP = ("--disable-pip-version-check", "--no-input", "--no-compile", "--quiet", "--retries", "1")
_OUT_OF_REACH = re.compile(r"code (ENOTFOUND|EAI_AGAIN|ECONN\w+|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT)")


def folder() -> Path:
    """The folder of this run; the first process makes it, and removes it when it ends."""
    if FOLDER not in os.environ:
        place = tempfile.TemporaryDirectory(prefix="packages-")
        atexit.register(place.cleanup)
        os.environ[FOLDER] = place.name
    return Path(os.environ[FOLDER])


def once(fill: Callable[[Path], None], *words: str) -> Path:
    """The directory of these words, which `fill` has filled; another process that wants it waits."""
    place = folder() / hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
    with Path(f"{place}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.fstat(lock.fileno()).st_size:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            fill(place)
            lock.write("filled")
    return place


@functools.cache
def npm(*names: str) -> Path:
    """The directory with the commands of these packages. Raises SkipTest."""

    def install(place: Path) -> None:
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise unittest.SkipTest(f"npm and node are not on the PATH: {' and '.join(names)} cannot be installed")
        done = _run("npm", "install", "--prefix", str(place), *_NPM, *names)
        if done.returncode and (found := _OUT_OF_REACH.search(done.stderr)):
            raise unittest.SkipTest(f"npm cannot reach its registry to install {' and '.join(names)}: {found[1]}")
        if done.returncode:
            raise AssertionError(f"npm ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    return once(install, "npm", *names) / "node_modules" / ".bin"


@functools.cache
def pypi(*names: str) -> Path:
    """The same for packages that need an environment of their own. Raises SkipTest."""

    def install(place: Path) -> None:
        venv.create(place, with_pip=True)
        done = _run(str(place / "bin" / "python"), "-m", "pip", "install", *_PIP, *names)
        if done.returncode:
            raise unittest.SkipTest(f"pip cannot install {' and '.join(names)} here: {done.stderr.strip()[-300:]}")

    return once(install, "pypi", *names) / "bin"


@functools.cache
def debian(program: str, *names: str) -> Path:
    """The root of these packages, which have this program and its libraries; unpacked only. Raises SkipTest."""

    def unpack(place: Path) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise unittest.SkipTest(f"{program} is not on the PATH, and there is no apt to get {names[0]} with")
        for name in names:
            if _run("apt-get", "download", "-qq", name, place=place).returncode:
                raise unittest.SkipTest(f"{program} is not on the PATH, and apt has no {name}")
            [archive] = place.glob(f"{name}_*.deb")
            _run("dpkg-deb", "-x", archive.name, ".", place=place).check_returncode()

    return once(unpack, "debian", *names)


def _run(*command: str, place: Path | None = None) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise unittest.SkipTest(f"{' '.join(command)} did not end within {INSTALL_SECONDS} s") from None
