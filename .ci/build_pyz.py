"""python .ci/build_pyz.py [FILE]: the whole program as one file that any Python from 3.11 on runs.

The same tree gives the same bytes, whatever the times, modes and owners of its files: only names and contents count,
and the library that compresses. It takes the package and the licence, nothing else, and needs no package but Python.
"""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "deepseek_cursor_proxy"
DEFAULT = ROOT / "dist" / "deepseek-cursor-proxy.pyz"

# On Unix the file can be run itself; on Windows the launcher `py` reads this line.
SHEBANG = b"#!/usr/bin/env python3\n"
# What the module zipapp writes here would drop the exit code. A Python that is too old has to read it as well.
MAIN = b"import sys\n\nfrom deepseek_cursor_proxy.__main__ import main\n\nsys.exit(main())\n"
# The first moment that zip can express.
TIME = (1980, 1, 1, 0, 0, 0)


def build(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in contents():
                archive.writestr(_entry(name), data, zipfile.ZIP_DEFLATED, 9)
    target.chmod(0o755)


def contents() -> Iterator[tuple[str, bytes]]:
    """Name and data of every file in the archive, in the order it has them."""
    yield "__main__.py", MAIN
    yield "LICENSE", (ROOT / "LICENSE").read_bytes()
    names = {path.relative_to(ROOT).as_posix(): path for path in PACKAGE.rglob("*") if path.is_file()}
    for name in sorted(names):
        if not any(part.startswith((".", "__pycache__")) for part in name.split("/")):
            yield name, names[name].read_bytes()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, TIME)
    # Windows would say otherwise.
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    return entry


if __name__ == "__main__":
    path = Path(sys.argv[1]) if sys.argv[1:] else DEFAULT
    build(path)
    print(path)
