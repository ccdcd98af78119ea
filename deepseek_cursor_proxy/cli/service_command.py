"""The `service` command: install the proxy as a service of the user, remove it, show how it is and what it printed.

`install` shows what it writes and runs, and asks; the settings that were given, as flags or by the environment, become
flags of the service. Keys are not written into it.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.parser import Command, program_name
from deepseek_cursor_proxy.cli.service.managers import Manager, find_launch, manager
from deepseek_cursor_proxy.cli.settings_flags import load
from deepseek_cursor_proxy.config.declaration import Setting
from deepseek_cursor_proxy.config.loaded_config import SETTINGS, LoadedConfig
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage import private_files

_MAX_LINES = 200
# Variables that matter to the proxy and that a service does not get from a shell.
_VARIABLES = (HELD_KEY, "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "NGROK_AUTHTOKEN", "TUNNEL_TOKEN")


def _install(options: dict[str, Any]) -> int:
    is_agreed, is_print = options.pop("yes"), options.pop("print")
    service = _find(_flags(options, load(options)))
    text = service.text.decode("utf-16" if service.text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    is_same = service.path.exists() and service.path.read_bytes() == service.text
    print(f"{'Unchanged' if is_same else 'To write'}: {service.path}\n")
    print(text.replace("\r\n", "\n"))
    print("Then:\n" + "\n".join(f"  {subprocess.list2cmdline(command)}" for command in service.install) + "\n")
    for name in _VARIABLES:
        if os.environ.get(name):
            print(f"{name} is set in this shell, which the service does not see: {service.variables}.")
    if is_print:
        return 0
    if not is_agreed:
        questions.confirm("service", "Install it?")
    try:
        private_files.make_directory(service.path.parent)
        private_files.write(service.path, service.text)
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
    except OSError as error:
        raise StartupError(f"cannot read {service.logs}: {error.strerror}; has the service run yet?") from None
    print("\n".join(lines[-_MAX_LINES:]))
    return 0


def _find(flags: Sequence[str] = ()) -> Manager:
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


def _call(command: tuple[str, ...], *, is_quiet: bool = False) -> int:
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
    _add_yes(parser)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


COMMANDS = (
    Command("install", "show the service's file, write it and start it", _install, _add_install_flags),
    Command("uninstall", "stop the service and remove it", _uninstall, _add_yes, settings=None),
    Command("status", "show whether it is running", _status, settings=None),
    Command("logs", "show the last lines it printed", _logs, settings=None),
)
