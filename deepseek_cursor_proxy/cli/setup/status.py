"""Which clients are on a machine, and whether their settings point to a proxy. Only reads."""

import re
from typing import NamedTuple

from deepseek_cursor_proxy.cli.setup import files
from deepseek_cursor_proxy.cli.setup.clients import Client
from deepseek_cursor_proxy.cli.setup.editors.documents import Unreadable, decode
from deepseek_cursor_proxy.cli.setup.endpoint import Endpoint
from deepseek_cursor_proxy.cli.setup.machine import Machine


class Status(NamedTuple):
    """`points_here` is None if the file cannot be read; `fault` says why then."""

    is_found: bool
    points_here: bool | None
    fault: str = ""


def status(client: Client, machine: Machine, endpoint: Endpoint) -> Status:
    path = client.targets(machine, endpoint)[0].path
    # The home itself is there for every client.
    has_folder = path.parent != machine.home and machine.exists(path.parent)
    is_found = has_folder or machine.exists(path) or machine.has_program(client.program)
    try:
        text = decode(files.read(path) or b"").text
    except Unreadable as reason:
        return Status(is_found, None, str(reason))
    return Status(is_found, _names(text, endpoint.root))


def _names(text: str, root: str) -> bool:
    """Whether a text has an address outside of comments, under either name of this machine."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "//")))
    roots = {root, root.replace("//127.0.0.1:", "//localhost:"), root.replace("//localhost:", "//127.0.0.1:")}
    return any(re.search(rf"{re.escape(each)}(?![\w.:-])", lines) for each in roots)
