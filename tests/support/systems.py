"""What the system under the tests can do, for tests of what only some systems can."""

import os
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _can_symlink() -> bool:
    with tempfile.TemporaryDirectory() as place:
        link = Path(place) / "link"
        try:
            link.symlink_to("anywhere")
        except OSError:
            return False
        return link.is_symlink()


needs_symlinks = unittest.skipUnless(_can_symlink(), "symbolic links cannot be made here")
needs_removable_open_files = unittest.skipIf(os.name == "nt", "Windows does not remove or rename a file that is open")
