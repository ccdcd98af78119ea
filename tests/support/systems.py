"""Conditions for tests that only some systems can run."""

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


needs_symlinks = unittest.skipUnless(_can_symlink(), "this system allows no symbolic links")
needs_removable_open_files = unittest.skipIf(os.name == "nt", "Windows does not remove or rename a file that is open")
