"""The service on the three systems: the command that it runs, the file that holds it, and the commands that manage it.

The command starts this installation again, from a checkout, an environment or a zip archive. An environment (pip, pipx,
uv) is named by its own Python. What `uvx` and `pipx run` make is deleted some day, so no service is made of it.
Installing twice gives the same as once: the file is replaced and the service started anew. Nothing here prints or asks.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from subprocess import list2cmdline
from typing import NamedTuple
from xml.sax.saxutils import escape

import deepseek_cursor_proxy
from deepseek_cursor_proxy.errors import StartupError

PACKAGE = "deepseek_cursor_proxy"
_INSTALLED = re.compile(r"(?:site|dist)-packages")
_CACHES = re.compile(
    r"[\\/](?:uv[\\/](?:cache[\\/])?(?:archive|environments)-v\d|pipx[\\/]\.cache|\.cache[\\/](?:uv|pipx))[\\/]"
)
NAME = "deepseek-cursor-proxy"
_DESCRIPTION = "DeepSeek's thinking models in Cursor and other agents"
# More than shutdown_grace, then the system kills.
_STOP_SECONDS = 15

Command = tuple[str, ...]


class Launch(NamedTuple):
    """How the proxy is started: a Python, what it runs, and the folder to be in (empty for any)."""

    python: str
    arguments: tuple[str, ...]
    folder: str = ""

    @property
    def archive(self) -> str:
        """The zip archive that is run; empty if it is none."""
        return "" if self.arguments[0] == "-m" else self.arguments[0]


def find_launch(flags: Sequence[str], python: str = sys.executable, package: Path | None = None) -> Launch:
    """The launch of the running installation with these flags; StartupError for one that will not stay."""
    place = (package or Path(deepseek_cursor_proxy.__file__).parent).absolute().parent
    if _CACHES.search(str(place)):
        raise StartupError(
            f"this installation is temporary ({place}): install it first, with `uv tool install` or `pipx install`"
        )
    words = ("serve", *flags)
    if place.is_file():
        return Launch(python, (str(place), *words))
    is_installed = any(map(_INSTALLED.fullmatch, place.parts))
    return Launch(python, ("-m", PACKAGE, *words), "" if is_installed else str(place))


@dataclass(frozen=True)
class Manager:
    """What one system needs for one service."""

    path: Path
    text: bytes
    # Run in this order after the file was written; `cleanup` undoes a former installation and may fail.
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
    raise StartupError(f"services are not supported on {system}; .github/docs/operations.md says what one needs")


def _systemd(launch: Launch, home: Path, environment: Mapping[str, str]) -> Manager:
    folder = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user"
    control = ("systemctl", "--user")
    unit = f"{NAME}.service"
    return Manager(
        path=folder / unit,
        text=systemd_unit(launch).encode(),
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
        text=launchd_agent(launch, str(log)).encode(),
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
        text=windows_task(launch, user, str(log)).replace("\n", "\r\n").encode("utf-16"),
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


# The texts: a unit for systemd, a property list for launchd, a task for Windows. Exit code 2 means that no restart will
# help; systemd has a line for it. A stop gives running answers their time.

_UNIT = """[Unit]
Description={description}

[Service]
{folder}ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
EnvironmentFile=-%h/.deepseek-cursor-proxy/environment
Restart=always
RestartSec=2
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec={seconds}
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""

_AGENT = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>{name}</string>
  <key>ProgramArguments</key>
  <array>
{words}
  </array>{folder}
  <key>EnvironmentVariables</key>
  <dict><key>PATH</key><string>/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin</string></dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><true/>
  <key>ExitTimeOut</key><integer>{seconds}</integer>
  <key>Umask</key><integer>63</integer>
  <key>StandardOutPath</key><string>{log}</string>
  <key>StandardErrorPath</key><string>{log}</string>
</dict>
</plist>
"""

# Limits: a task ends after three days, and with the battery, unless it says otherwise.
_TASK = """<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>{description}</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <UserId>{user}</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{user}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>99</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{command}</Command>
      <Arguments>{arguments}</Arguments>{folder}
    </Exec>
  </Actions>
</Task>
"""


def systemd_unit(launch: Launch) -> str:
    folder = f"WorkingDirectory={launch.folder.replace('%', '%%')}\n" if launch.folder else ""
    command = " ".join(map(_systemd_word, (launch.python, *launch.arguments)))
    return _UNIT.format(description=_DESCRIPTION, folder=folder, command=command, seconds=_STOP_SECONDS)


def _systemd_word(word: str) -> str:
    """A word of ExecStart: % and $ have a meaning there, and so have blanks, quotes and backslashes."""
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%$+=:,./-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def launchd_agent(launch: Launch, log: str) -> str:
    words = "\n".join(f"    <string>{escape(word)}</string>" for word in (launch.python, *launch.arguments))
    folder = f"\n  <key>WorkingDirectory</key><string>{escape(launch.folder)}</string>" if launch.folder else ""
    return _AGENT.format(name=NAME, words=words, folder=folder, log=escape(log), seconds=_STOP_SECONDS)


def windows_task(launch: Launch, user: str, log: str) -> str:
    # No window opens with it.
    python = str(PureWindowsPath(launch.python).with_name("pythonw.exe"))
    folder = f"\n      <WorkingDirectory>{escape(launch.folder)}</WorkingDirectory>" if launch.folder else ""
    return _TASK.format(
        description=_DESCRIPTION,
        user=escape(user),
        command=escape(python),
        arguments=escape(list2cmdline(_logged(launch, log))),
        folder=folder,
    )


def _logged(launch: Launch, log: str) -> list[str]:
    """The arguments of a Python without a console, which writes what it prints into a file."""
    module = "deepseek_cursor_proxy.cli.service.log_file"
    if not launch.archive:
        return ["-m", module, log, *launch.arguments[2:]]
    start = f"import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('{module}', run_name='__main__')"
    return ["-c", start, launch.archive, log, *launch.arguments[1:]]
