"""The parser of the command line: a table of Commands in, the options of one of them out; and the settings as flags.

Only full names of flags are accepted. A mistake is a StartupError of one line, with keys removed. The flag of a setting
has no default: `config` takes an absent one from the environment, the file or the declaration, and checks the values.
"""

import argparse
import contextlib
import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.api.routes import load as load_named
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.config.declaration import Setting, nearest, to_toml
from deepseek_cursor_proxy.config.loaded_config import SETTINGS, LoadedConfig
from deepseek_cursor_proxy.config.settings import CONFIG_PATH
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import safe_text

_DESCRIPTION = "DeepSeek's thinking models in your coding agent"
_EPILOG = "`help COMMAND` explains a command; `serve --help-all` lists all settings."

# Settings as flags …


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add one flag per declared setting; `config` checks the values."""
    default = argparse.SUPPRESS
    parser.formatter_class = _CommonSettings
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all settings and exit")
    add_config(parser)
    titles = dict.fromkeys(["common settings", *(setting.group for setting in SETTINGS)])
    groups = {title: parser.add_argument_group(title) for title in titles}
    for setting in SETTINGS:
        group = groups["common settings" if setting.is_common else setting.group]
        group.add_argument(setting.flag, dest=setting.key, default=default, **_flag_details(setting))
        if setting.switch:
            negated = setting.flag.replace("--", "--no-", 1)
            help = f"the same as {setting.flag} off"
            group.add_argument(negated, dest=setting.key, default=default, action="store_const", const="off", help=help)


class _Help(argparse.HelpFormatter):
    """Help with a usage of one line: argparse repeats all flags in it, on up to two screens."""

    def __init__(self, prog: str, width: int = 80) -> None:
        # argparse makes one for every flag that it adds, and would ask the terminal for its width each time.
        super().__init__(prog, width=width)

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: str | None = None
    ) -> None:
        # With a prefix it is the name of a parser that has subparsers.
        flags = [argparse.Action(["flags"], "flags", nargs=0)] if prefix is None else []
        super().add_usage(usage, [*flags, *(each for each in actions if not each.option_strings)], (), prefix)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # argparse breaks ~/.deepseek-cursor-proxy at its hyphens. Imported late: a start needs no help.
        import textwrap

        return textwrap.wrap(text, width, break_on_hyphens=False)


class _CommonSettings(_Help):
    """Help without the settings that few people change, and without second names."""

    rare = frozenset(setting.key for setting in SETTINGS if not setting.is_common)

    def add_argument(self, action: argparse.Action) -> None:
        if action.dest not in self.rare and action.const != "off":
            super().add_argument(action)


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.formatter_class = _Help
        parser.print_help()
        parser.exit()


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the flags that lead to the files of a proxy: its configuration, and its store if that was a flag."""
    add_config(parser)
    help = "the store of the proxy, if it was started with this flag"
    flag = "--reasoning-content-path"
    parser.add_argument(flag, type=str, metavar="FILE", default=argparse.SUPPRESS, help=help)


def add_config(parser: argparse.ArgumentParser) -> None:
    help = f"configuration file (default {CONFIG_PATH})"
    parser.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help=help)


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="skip confirmation")


def _flag_details(setting: Setting) -> dict[str, Any]:
    default = f" (default {to_toml(setting.default)})" if setting.default else ""
    help = (setting.help + default).replace("%", "%%")
    if setting.kind is bool:
        return {"action": argparse.BooleanOptionalAction, "help": help}
    kind = {tuple: "LIST", AccessKey: "KEY"}.get(setting.kind) or setting.kind.__name__.upper()
    metavar = "{" + ",".join(setting.choices) + "}" if setting.choices else kind
    without_value = {"nargs": "?", "const": "on"} if setting.switch else {}
    return {"metavar": metavar, "help": help, **without_value}


def config_path(options: dict[str, Any]) -> Path:
    return options.get("config") or CONFIG_PATH


def load(options: dict[str, Any]) -> LoadedConfig:
    path = config_path(options)
    # Reading the file reports any other problem with it.
    with contextlib.suppress(OSError):
        if options.get("config") is not None and not expand_home(path).exists():
            raise StartupError(f"config: {safe_text(path)} does not exist; create it, or leave --config out")
    loaded = LoadedConfig.load(path, os.environ, given_settings(options))
    if loaded.config.models or loaded.config.subagent_model:
        # Imported late: most people have none, and the start is faster without.
        from deepseek_cursor_proxy.deepseek import model_resolver

        model_resolver.refuse_unknown(loaded.config, loaded.origins["models"])
    return loaded


def given_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are settings."""
    return {setting.key: options[setting.key] for setting in SETTINGS if setting.key in options}


# Commands …

# A name, as in "cli.store:run", is that of a function in a module of the package, which is imported with the command.
Run = Callable[[dict[str, Any]], int | None] | str
AddFlags = Callable[[argparse.ArgumentParser], None] | str


class Command(NamedTuple):
    """A command, or a group of commands, which runs nothing itself."""

    name: str
    help: str
    # Gets the options, and returns an exit code or None for success.
    run: Run | None = None
    add_flags: AddFlags | None = None
    # Adds the flags for settings, in front of its own; None for a command that reads none.
    settings: AddFlags | None = add_files
    # Those of a group, or their name.
    commands: "tuple[Command, ...] | str" = ()
    # Heading in `--help` of this command and those that follow, up to the next heading.
    heading: str = ""


def parse(words: list[str], commands: Sequence[Command]) -> dict[str, Any]:
    """The options of a command line; the parser of its command refuses unknown words."""
    namespace, unknown = build_parser(words[0], commands).parse_known_args(words)
    options = vars(namespace)
    parser: _Parser = options.pop("parser")
    if unknown:
        parser.refuse_unknown(unknown, [command.name for command in commands])
    return options


def run(options: dict[str, Any]) -> int:
    """Run the command whose options these are; the exit code."""
    return int(resolve(options.pop("command"))(options) or 0)


def resolve(named: Any) -> Any:
    """What a name in the table refers to; any other value unchanged."""
    return load_named(named) if isinstance(named, str) else named


def build_parser(name: str, commands: Sequence[Command]) -> "_Parser":
    """The parser for a line that begins with this command, without the others: adding all takes 12 ms."""
    parser = _Parser(prog=program_name())
    parser.page = _first_page(parser.prog, commands)
    parser.add_argument("--version", action="version", version=f"deepseek-cursor-proxy {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    # What names no command is refused with the names of all.
    for command in [each for each in commands if each.name == name] or commands:
        subparser = subparsers.add_parser(command.name, help=command.help)
        if command.name == name:
            _fill(subparser, command)
    return parser


def _first_page(program: str, commands: Sequence[Command]) -> str:
    """All commands, on a screen of 24 lines; argparse prints them in one list and breaks the line after long names."""
    lines = [f"usage: {program} [--version] [COMMAND] [flags]", _DESCRIPTION, ""]
    for command in commands:
        lines += [command.heading] if command.heading else []
        lines.append(f"  {command.name:<11} {command.help}")
    return "\n".join([*lines, "", _EPILOG, ""])


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    if command.run is None:
        # Without a subcommand.
        parser.set_defaults(command=lambda _: parser.print_help())
        subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
        for subcommand in resolve(command.commands):
            _fill(subparsers.add_parser(subcommand.name, help=subcommand.help), subcommand)
        return
    for add_flags in (command.settings, command.add_flags):
        if add_flags is not None:
            resolve(add_flags)(parser)
    parser.set_defaults(command=command.run)


class _Parser(argparse.ArgumentParser):
    """Accepts full flag names only, and raises StartupError with one line; also used for subcommands."""

    # What --help prints in place of the parser's own list.
    page = ""

    def __init__(self, **details: Any) -> None:
        # An abbreviation that works today is ambiguous with the next setting.
        super().__init__(allow_abbrev=False, formatter_class=_Help, **details)
        self.set_defaults(parser=self)

    def refuse_unknown(self, words: list[str], commands: Sequence[str]) -> NoReturn:
        names = {flag.lstrip("-"): flag for flag in self._option_string_actions}
        flags = (word.partition("=")[0].lstrip("-") for word in words if word.startswith("-"))
        near = nearest(next(flags, ""), names)
        hint = f"did you mean {names[near]}? " if near else ""
        if command := next((name for name in commands if name in words), None):
            hint = f"a command comes before its flags, as in `{program_name()} {command} …`; "
        self._refuse(f"unrecognized arguments: {' '.join(words)}", hint)

    def format_help(self) -> str:
        # As wide as argparse makes it.
        help: Any = self.formatter_class
        self.formatter_class = functools.partial(help, width=shutil.get_terminal_size().columns - 2)
        return self.page or super().format_help()

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse ignores that a disk is full.
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        self._refuse(message)

    def _refuse(self, message: str, hint: str = "") -> NoReturn:
        # A key after a misspelt flag must not get into a log.
        message = re.sub(r"(sk-|sha256:)[^\s',]+", r"\1…", message)
        help = "--help-all" if "--help-all" in self._option_string_actions else "--help"
        raise StartupError(f"{message}; {hint}`{self.prog} {help}` lists what is available")


# How this program was started, for hints that can be typed …

_SCRIPT = "deepseek-cursor-proxy"


def program_name(*, anywhere: bool = False) -> str:
    """The command that starts this program again, in this folder or `anywhere`: a checkout installs nothing."""
    started = Path(*sys.argv[:1]).absolute()
    if started.suffix == ".pyz" or started.name == "deepseek_cursor_proxy":
        return _join([_python(), str(started)])
    if started.parts[-2:] == ("deepseek_cursor_proxy", "__main__.py"):
        return _module(started.parent.parent, anywhere=anywhere)
    is_ours = started.stem == _SCRIPT and started.exists() and shutil.which(_SCRIPT) is None
    return _join([str(started)]) if is_ours else _SCRIPT


def _module(root: Path, *, anywhere: bool) -> str:
    """`python -m` if Python finds the package by itself, else the path of the package, which works in any folder."""
    is_installed = root.name in ("site-packages", "dist-packages")
    python = _python(any_copy=not is_installed)
    # The folder in which `python -m` was started.
    is_here = root == Path(sys.path[0]) and not anywhere
    package = "-m deepseek_cursor_proxy" if is_installed or is_here else _join([str(root / "deepseek_cursor_proxy")])
    return f"{python} {package}"


def _python(*, any_copy: bool = True) -> str:
    """The name under which the shell finds this Python or, with `any_copy`, one of its version; else its path."""
    typed = Path(*sys.orig_argv[:1])
    if len(typed.parts) == 1 or shutil.which(typed.name) == str(typed):
        return typed.name
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return version if any_copy and shutil.which(version) else _join([sys.executable])


def _join(words: list[str]) -> str:
    if sys.platform != "win32":
        return shlex.join(words)
    # Imported late: it takes 2 ms.
    import subprocess

    return subprocess.list2cmdline(words)
