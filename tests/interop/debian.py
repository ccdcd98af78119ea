"""Programs from Debian's packages, unpacked into a directory that is gone when the module of tests has run.

No root is needed: the package is downloaded and unpacked, not installed. Where there is no apt, or no way to its
archive, the tests are skipped, and say why.
"""

import functools
import shutil
import subprocess
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory

DOWNLOAD_SECONDS = 120


@functools.cache
def program(name: str, package: str) -> str:
    """The path of a program: of an installed one, or from this package. Raises SkipTest."""
    return shutil.which(name) or str(unpacked(name, package) / "usr" / "bin" / name)


@functools.cache
def unpacked(name: str, *packages: str) -> Path:
    """The root of these packages, which have the program of that name and its libraries. Raises SkipTest."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise unittest.SkipTest(f"{name} is not on the PATH, and there is no apt to get {packages[0]} with")
    place = Path(unittest.enterModuleContext(TemporaryDirectory(prefix="debian-")))
    # Another module unpacks them anew.
    unittest.addModuleCleanup(program.cache_clear)
    unittest.addModuleCleanup(unpacked.cache_clear)
    try:
        for package in packages:
            _run(["apt-get", "download", "-qq", package], place)
            [archive] = place.glob(f"{package}_*.deb")
            _run(["dpkg-deb", "-x", archive.name, "."], place)
    except (subprocess.SubprocessError, ValueError) as error:
        raise unittest.SkipTest(
            f"{name} is not on the PATH, and apt has no {packages[0]}: {type(error).__name__}"
        ) from None
    return place


def _run(command: list[str], place: Path) -> None:
    subprocess.run(command, cwd=place, capture_output=True, timeout=DOWNLOAD_SECONDS, check=True)
