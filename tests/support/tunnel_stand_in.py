"""A stand-in for tunnel programs: a real process that prints what ngrok 3.20 and cloudflared 2026.8.2 print."""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.support.program import ServeTest

PORT = 9000  # never opened: only the real program would connect to it
URL = "https://first.ngrok-free.app"
NEW = "https://second.ngrok-free.app"

# Each launch prints the next part of plan.json and stays, unless the part says how it ends; the last part repeats.
_STAND_IN = """
import json, os, signal, sys, threading

home = os.path.dirname(__file__)
with open(os.path.join(home, "plan.json")) as file:
    plan = json.load(file)
launches = os.path.join(home, "launches")
with open(launches) as file:
    part = plan[min(len(file.readlines()), len(plan) - 1)]
if part.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(launches, "a") as file:
    print(json.dumps([os.getpid(), sys.argv[1:]]), file=file)
for line in part["lines"]:
    print(line if isinstance(line, str) else json.dumps(line), flush=True)
if "code" in part:
    sys.exit(part["code"])
threading.Event().wait(600)  # a broken test leaves nothing behind for longer
"""

Part = dict[str, Any]


def prints(*lines: object, **more: Any) -> Part:
    return {"lines": lines, **more}


def fails(*lines: object) -> Part:
    return prints(*lines, code=1)


def started(url: object) -> dict[str, object]:
    """ngrok's announcement."""
    return {"lvl": "info", "msg": "started tunnel", "addr": f"http://localhost:{PORT}", "url": url}


def ngrok_error(text: str) -> Part:
    return fails({"lvl": "info", "msg": "open config file", "err": None}, {"lvl": "eror", "err": text})


OK, OK_ELSEWHERE = prints(started(URL)), prints(started(NEW))


def install(binary: Path, *plan: Part, prefix: str = "exec ", suffix: str = "") -> None:
    """Make `binary` a script that plays this plan."""
    script = binary.parent / "stand_in.py"
    script.write_text(_STAND_IN)
    (binary.parent / "plan.json").write_text(json.dumps(plan))
    (binary.parent / "launches").write_text("")
    if sys.platform == "win32":
        binary.write_text(f'@"{sys.executable}" -S -E "{script}" %*\n')
    else:
        command = shlex.join([sys.executable, "-S", "-E", str(script)])
        binary.write_text(f'#!/bin/sh\n{prefix}{command} "$@"{suffix}\n')
        binary.chmod(0o755)


def launches(folder: Path) -> list[tuple[int, list[str]]]:
    """Process id and arguments of every launch so far."""
    return [tuple(json.loads(line)) for line in (folder / "launches").read_text().splitlines()]


class TunnelProgramTest(ServeTest):
    """The proxy as a process, with a stand-in on its PATH."""

    def install(self, name: str, part: Part) -> dict[str, str]:
        """The environment of a machine on which nothing but this program is installed."""
        install(self.bin / name, part)
        return {"PATH": str(self.bin)}

    def forwarded_port(self) -> int:
        [(_, arguments)] = launches(self.bin)
        return int(re.search(r"\d{4,}", " ".join(arguments))[0])

    def is_tunnel_gone(self) -> bool:
        [(child, _)] = launches(self.bin)
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        return False
