"""The clients of this machine, and which of them point to the proxy. Their files are only read."""

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from deepseek_cursor_proxy.cli.doctor.finding import Finding, good, skipped, warning
from deepseek_cursor_proxy.cli.setup.clients import CLIENTS, status
from deepseek_cursor_proxy.cli.setup.endpoint import Endpoint, Machine

NAME = "clients"


class ClientFacts(NamedTuple):
    """`points_here` is None if its file cannot be read, and `fault` says why."""

    name: str
    title: str
    points_here: bool | None
    fault: str = ""


def this_machine() -> Machine:
    """The machine that this runs on; RuntimeError without a home directory."""
    return Machine(sys.platform, Path.home(), os.environ, lambda name: shutil.which(name) is not None, Path.exists)


def look(machine: Machine, root: str) -> list[ClientFacts]:
    """The clients that are found here; `root` is the address of the proxy without /v1."""
    found = []
    for client in CLIENTS.values():
        seen = status(client, machine, Endpoint(root))
        if seen.is_found:
            found.append(ClientFacts(client.name, client.title, seen.points_here, seen.fault))
    return found


def judge(clients: list[ClientFacts], root: str) -> list[Finding]:
    unreadable = [
        warning(NAME, f"the settings of {each.title} cannot be read: {each.fault}", f"correct the file of {each.title}")
        for each in clients
        if each.points_here is None
    ]
    here = ", ".join(each.title for each in clients if each.points_here)
    others = [each for each in clients if each.points_here is False]
    elsewhere = f"; {', '.join(each.title for each in others)} elsewhere" if others else ""
    if here:
        return [good(NAME, f"{here} to {root}{elsewhere}"), *unreadable]
    if not others:
        return unreadable or [skipped(NAME, "none is found here whose settings can be read; Cursor's cannot")]
    remedy = f"`setup {others[0].name}` points one to {root}; Cursor's own settings cannot be read"
    return [skipped(NAME, f"none points to {root}{elsewhere}", remedy), *unreadable]
