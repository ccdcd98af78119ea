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
    if (found := shutil.which(name)) is not None:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise unittest.SkipTest(f"{name} is not on the PATH, and there is no apt to get {package} with")
    place = Path(unittest.enterModuleContext(TemporaryDirectory(prefix="debian-")))
    try:
        _run(["apt-get", "download", "-qq", package], place)
        [archive] = place.glob("*.deb")
        _run(["dpkg-deb", "-x", archive.name, "."], place)
    except (subprocess.SubprocessError, ValueError) as error:
        raise unittest.SkipTest(
            f"{name} is not on the PATH, and apt has no {package}: {type(error).__name__}"
        ) from None
    return str(place / "usr" / "bin" / name)


def _run(command: list[str], place: Path) -> None:
    subprocess.run(command, cwd=place, capture_output=True, timeout=DOWNLOAD_SECONDS, check=True)
