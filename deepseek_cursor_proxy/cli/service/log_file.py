"""python -m deepseek_cursor_proxy.cli.service.log_file FILE …: the proxy with its output at the end of a private file.

For a task of Windows, which has no console. The file begins anew with a start that finds it large.
"""

import contextlib
import os
import runpy
import sys
from pathlib import Path

from deepseek_cursor_proxy.storage import private_files

_MAX_BYTES = 10_000_000


def run(words: list[str]) -> None:
    """Run the command line in `words`, behind the path of the log."""
    path = Path(words[0])
    with contextlib.suppress(OSError):
        private_files.make_directory(path.parent)
        if path.exists() and path.stat().st_size > _MAX_BYTES:
            os.replace(path, path.with_name(path.name + ".old"))
        private_files.create(path)
    sys.argv[1:] = words[1:]
    with path.open("a", encoding="utf-8", buffering=1) as log:
        sys.stdout = sys.stderr = log
        runpy.run_module("deepseek_cursor_proxy", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run(sys.argv[1:])
