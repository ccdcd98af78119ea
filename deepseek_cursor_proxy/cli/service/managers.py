"""The service managers of the three systems: the file that holds the service, and the commands for it.

Installing twice gives the same as once: the file is replaced and the service started anew. Nothing here prints or asks.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepseek_cursor_proxy.cli.service import units
from deepseek_cursor_proxy.cli.service.launch import Launch
from deepseek_cursor_proxy.cli.service.units import NAME
from deepseek_cursor_proxy.errors import StartupError

Command = tuple[str, ...]


@dataclass(frozen=True)
class Manager:
    """What one system needs for one service."""

    path: Path
    text: bytes
    # In this order, after the file was written; those that undo a former installation may fail.
    cleanup: tuple[Command, ...]
    install: tuple[Command, ...]
    uninstall: tuple[Command, ...]
    status: Command
    # A command that prints the log, or the file that holds it.
    logs: Command | Path
    # Where a variable has to be set for the service.
    variables: str
    # After the file was deleted.
    forget: tuple[Command, ...] = ()
    hint: str = ""


def manager(
    launch: Launch, home: Path, environment: Mapping[str, str], system: str = sys.platform, user_id: int = 0
) -> Manager:
    """The manager of this system; StartupError if it has none that is known here."""
    if system == "linux":
        return _systemd(launch, home, environment)
    if system == "darwin":
        return _launchd(launch, home, user_id)
    if system == "win32":
        return _task_scheduler(launch, home, environment)
    raise StartupError(f"there is no service manager for {system} here; .github/docs/operations.md has what it needs")


def _systemd(launch: Launch, home: Path, environment: Mapping[str, str]) -> Manager:
    folder = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user"
    control = ("systemctl", "--user")
    unit = f"{NAME}.service"
    return Manager(
        path=folder / unit,
        text=units.systemd_unit(launch).encode(),
        cleanup=(),
        install=((*control, "daemon-reload"), (*control, "enable", unit), (*control, "restart", unit)),
        uninstall=((*control, "disable", "--now", unit),),
        status=(*control, "status", "--no-pager", unit),
        logs=("journalctl", "--user", "--no-pager", "-n", "200", "-u", unit),
        variables="put it into ~/.deepseek-cursor-proxy/environment as NAME=value",
        forget=((*control, "daemon-reload"),),
        hint="It runs while you are logged in; `loginctl enable-linger` keeps it running after that.",
    )


def _launchd(launch: Launch, home: Path, user_id: int) -> Manager:
    log = home / "Library" / "Logs" / f"{NAME}.log"
    path = home / "Library" / "LaunchAgents" / f"{NAME}.plist"
    domain = f"gui/{user_id}"
    remove = ("launchctl", "bootout", f"{domain}/{NAME}")
    return Manager(
        path=path,
        text=units.launchd_agent(launch, str(log)).encode(),
        cleanup=(remove,),
        install=(("launchctl", "bootstrap", domain, str(path)),),
        uninstall=(remove,),
        status=("launchctl", "print", f"{domain}/{NAME}"),
        logs=log,
        variables="set it with `launchctl setenv NAME value` before the service starts",
    )


def _task_scheduler(launch: Launch, home: Path, environment: Mapping[str, str]) -> Manager:
    folder = home / ".deepseek-cursor-proxy"
    log, path = folder / "service.log", folder / "service.xml"
    user = "\\".join(
        filter(None, (environment.get("USERDOMAIN"), environment.get("USERNAME") or os.path.basename(home)))
    )
    end = ("schtasks", "/End", "/TN", NAME)
    return Manager(
        path=path,
        # schtasks reads nothing else.
        text=units.windows_task(launch, user, str(log)).replace("\n", "\r\n").encode("utf-16"),
        cleanup=(end,),
        install=(
            ("schtasks", "/Create", "/F", "/TN", NAME, "/XML", str(path)),
            ("schtasks", "/Run", "/TN", NAME),
        ),
        uninstall=(end, ("schtasks", "/Delete", "/F", "/TN", NAME)),
        status=("schtasks", "/Query", "/V", "/FO", "LIST", "/TN", NAME),
        logs=log,
        variables="set it for your account with `setx NAME value`",
    )
