"""The `service` command: install the proxy as a service of the user, remove it, show its state and its log.

Two systems are supported: a unit of systemd and an agent of launchd. `install` shows what it writes and runs, and asks
first; settings given as flags or by the environment become flags of the service. Keys are not written into it. The
service starts this installation again, from a checkout, an environment or a zip archive. An environment (pip, pipx, uv)
is named by its own Python. Environments of `uvx` and `pipx run` are temporary, so they are refused. Installing twice
gives the same as once: the file is replaced and the service restarted.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import deepseek_cursor_proxy
from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.parser import Command, add_settings, add_yes, load, program_name
from deepseek_cursor_proxy.config.declaration import Setting
from deepseek_cursor_proxy.config.loaded_config import SETTINGS, LoadedConfig
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage import private_files

_MAX_LINES = 200
# Variables that matter to the proxy and that a service does not get from a shell.
_VARIABLES = (HELD_KEY, "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "NGROK_AUTHTOKEN", "TUNNEL_TOKEN")
_INSTALLED = re.compile(r"(?:site|dist)-packages")
_CACHES = re.compile(
    r"[\\/](?:uv[\\/](?:cache[\\/])?(?:archive|environments)-v\d|pipx[\\/]\.cache|\.cache[\\/](?:uv|pipx))[\\/]"
)
NAME = "deepseek-cursor-proxy"
# More than shutdown_grace, then the system kills.
_STOP_SECONDS = 15

# A command of the system.
Words = tuple[str, ...]


def _install(options: dict[str, Any]) -> int:
    service = _find(_flags(options, load(options)))
    is_same = service.path.exists() and service.path.read_bytes() == service.text.encode()
    print(f"{'Unchanged' if is_same else 'To write'}: {service.path}\n")
    print(service.text)
    print("Then:\n" + "\n".join(f"  {subprocess.list2cmdline(command)}" for command in service.install) + "\n")
    for name in _VARIABLES:
        if os.environ.get(name):
            print(f"{name} is set in this shell, which the service does not see: {service.variables}.")
    if options["print"]:
        return 0
    if not options["yes"]:
        questions.confirm("service", "Install it?")
    try:
        private_files.write(service.path, service.text.encode())
    except OSError as error:
        raise StartupError(f"cannot write {service.path}: {error.strerror}") from None
    for command in service.cleanup:
        _call(command, is_quiet=True)
    for command in service.install:
        if code := _call(command):
            raise StartupError(
                f"`{subprocess.list2cmdline(command)}` ended with {code}; {service.path} is written. Run "
                f"`{program_name()} service install` again in a session of your own login, not by sudo or su"
            )
    print("Installed and started." + (f" {service.hint}" if service.hint else ""))
    return 0


def _uninstall(options: dict[str, Any]) -> int:
    service = _find()
    if not service.path.exists():
        print(f"There is no service: {service.path} does not exist.")
        return 0
    print("To run:\n" + "\n".join(f"  {subprocess.list2cmdline(command)}" for command in service.uninstall))
    print(f"To delete: {service.path}")
    if not options["yes"]:
        questions.confirm("service", "Remove it?")
    for command in service.uninstall:
        _call(command, is_quiet=True)
    service.path.unlink(missing_ok=True)
    for command in service.forget:
        _call(command, is_quiet=True)
    print("Removed. Settings and stored reasoning are kept.")
    return 0


def _status(options: dict[str, Any]) -> int:
    service = _find()
    if not service.path.exists():
        print(f"There is no service: {service.path} does not exist. `{program_name()} service install` creates one.")
        return 1
    return 1 if _call(service.status) else 0


def _logs(options: dict[str, Any]) -> int:
    service = _find()
    if not isinstance(service.logs, Path):
        return 1 if _call(service.logs) else 0
    try:
        lines = service.logs.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = [f"There is no log yet: {service.logs} does not exist."]
    print("\n".join(lines[-_MAX_LINES:]))
    return 0


def _find(flags: Sequence[str] = ()) -> "Manager":
    """The service manager of this system, for a proxy with these flags."""
    return manager(find_launch(flags), expand_home(Path("~")), os.environ, user_id=getattr(os, "getuid", int)())


def _flags(options: dict[str, Any], loaded: LoadedConfig) -> list[str]:
    """The settings that were given here, as flags that mean the same in any folder."""
    config = options.get("config")
    flags = ["--config", str(expand_home(config).absolute())] if config is not None else []
    for setting in SETTINGS:
        if loaded.origins[setting.field].startswith(("flag ", "environment ")):
            flags += _flag(setting, getattr(loaded.config, setting.field))
    return flags


def _flag(setting: Setting, value: Any) -> list[str]:
    if setting.is_secret:
        raise StartupError(f"{setting.key} must not be in the files of a service: set it in the configuration file")
    if isinstance(value, bool):
        return [setting.flag if value else setting.flag.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    if isinstance(value, Path) and str(value) != ":memory:":
        value = value.absolute()
    return [f"{setting.flag}={'' if value is None else value}"]


def _call(command: Words, *, is_quiet: bool = False) -> int:
    """The exit code of a command of the system, which prints to our terminal."""
    sys.stdout.flush()
    output = subprocess.DEVNULL if is_quiet else None
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
    except FileNotFoundError:
        raise StartupError(f"`{command[0]}` is not found: this system has no such service manager") from None
    except OSError as error:
        raise StartupError(f"`{command[0]}` cannot be run: {error.strerror}") from None


def _add_install_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--print", action="store_true", help="show it and change nothing")
    add_yes(parser)


COMMANDS = (
    Command("install", "show its file, install the service and start it", _install, _add_install_flags, add_settings),
    Command("uninstall", "stop the service and remove it", _uninstall, add_yes, settings=None),
    Command("status", "show whether it runs", _status, settings=None),
    Command("logs", "show the last lines it printed", _logs, settings=None),
)


# The service of each system …


class Launch(NamedTuple):
    """How the proxy is started: a Python, what it runs, and the folder to be in (empty for any)."""

    python: str
    arguments: tuple[str, ...]
    folder: str = ""


def find_launch(flags: Sequence[str], python: str = sys.executable, package: Path | None = None) -> Launch:
    """The launch of the running installation with these flags; StartupError for one that will not stay."""
    place = (package or Path(deepseek_cursor_proxy.__file__).parent).absolute().parent
    if _CACHES.search(str(place)):
        raise StartupError(f"this installation is temporary ({place}): run `uv tool install` or `pipx install` first")
    words = ("serve", *flags)
    if place.is_file():
        return Launch(python, (str(place), *words))
    is_installed = any(map(_INSTALLED.fullmatch, place.parts))
    return Launch(python, ("-m", "deepseek_cursor_proxy", *words), "" if is_installed else str(place))


@dataclass(frozen=True)
class Manager:
    """What one system needs for one service."""

    path: Path
    text: str
    # Run in this order after the file was written; `cleanup` undoes a former installation and may fail.
    cleanup: tuple[Words, ...]
    install: tuple[Words, ...]
    uninstall: tuple[Words, ...]
    status: Words
    # A command that prints the log, or the file that holds it.
    logs: Words | Path
    # Where a variable has to be set for the service.
    variables: str
    # After the file was deleted.
    forget: tuple[Words, ...] = ()
    hint: str = ""


def manager(
    launch: Launch, home: Path, environment: Mapping[str, str], system: str = sys.platform, user_id: int = 0
) -> Manager:
    """The manager of this system; StartupError if it has none that is known here."""
    if system == "linux":
        return _systemd(launch, home, environment)
    if system == "darwin":
        return _launchd(launch, home, user_id)
    raise StartupError(f"services are not supported on {system}; .github/docs/operations.md says what to do instead")


def _systemd(launch: Launch, home: Path, environment: Mapping[str, str]) -> Manager:
    folder = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user"
    control = ("systemctl", "--user")
    unit = f"{NAME}.service"
    return Manager(
        path=folder / unit,
        text=systemd_unit(launch),
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
        text=launchd_agent(launch, str(log)),
        cleanup=(remove,),
        install=(("launchctl", "bootstrap", domain, str(path)),),
        uninstall=(remove,),
        status=("launchctl", "print", f"{domain}/{NAME}"),
        logs=log,
        variables="set it with `launchctl setenv NAME value` before the service starts",
    )


# The texts: a unit for systemd, a property list for launchd. Exit code 2 means that no restart will help; systemd has a
# line for it. A stop gives running answers their time.

_UNIT = """[Unit]
Description=DeepSeek's thinking models in Cursor and other agents

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


def systemd_unit(launch: Launch) -> str:
    folder = f"WorkingDirectory={launch.folder.replace('%', '%%')}\n" if launch.folder else ""
    command = " ".join(map(_systemd_word, (launch.python, *launch.arguments)))
    return _UNIT.format(folder=folder, command=command, seconds=_STOP_SECONDS)


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
