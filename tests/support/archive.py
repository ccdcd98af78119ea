"""The program as one file, built as a release has it."""

import runpy
from pathlib import Path

from tests.support.systems import ROOT


def build_archive(folder: Path, root: Path = ROOT) -> Path:
    path = folder / "deepseek-cursor-proxy.pyz"
    runpy.run_path(str(root / ".ci" / "build_pyz.py"))["build"](path)
    return path
