"""The sources of values: defaults, file, environment, flags. Later ones win.

An unknown key or a bad value is a StartupError that names its origin; nothing is silently replaced. This module also
writes the commented configuration file of the first run and the settings table of the documentation. The settings
themselves are in `settings`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config.declaration import (
    ENVIRONMENT_PREFIX,
    Setting,
    Table,
    nearest,
    parse_toml,
    quote,
    to_toml,
)
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import safe_text

Declarations = Sequence[Setting | Table]


class SourceValues(NamedTuple):
    """By field: the values from any source, and the origin of every declared setting. What is wrong with the rest."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    faults: Sequence[StartupError]
    warnings: Sequence[str]


def read(
    declared: Declarations,
    retired: Mapping[str, str],
    path: Path,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
) -> SourceValues:
    """Read the file if there is one, then the environment, then flags; StartupError for a bad value."""
    found = collect(declared, retired, path, environment, flags)
    if found.faults:
        raise found.faults[0]
    return found


def collect(
    declared: Declarations,
    retired: Mapping[str, str],
    path: Path,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
) -> SourceValues:
    """The same without stopping at the first bad value. `retired` has settings of earlier versions."""
    values: dict[str, Any] = {}
    faults: list[StartupError] = []
    warnings: list[str] = []
    origins = {each.field: "default" for each in declared}
    # Older files use the field's name.
    names = {name: each for each in declared for name in (each.field, each.key)}
    try:
        settings = _read_file(path)
    except StartupError as error:
        settings, faults = {}, [error]
    for name, value, origin in _sources(settings, str(path), environment, flags):
        if name in retired:
            warnings.append(f"config: {name} is no longer a setting: {retired[name]}; remove it ({origin})")
            continue
        try:
            found = _find(names, name, origin)
            _refuse_misplaced(names, found, value, origin)
            values[found.field] = found.parse(value, origin)
            origins[found.field] = origin
        except StartupError as error:
            faults.append(error)
    return SourceValues(values, origins, faults, warnings)


def _sources(
    settings: Mapping[str, Any], file: str, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and origin of every value; later ones win."""
    for name, value in settings.items():
        yield name, value, file
    for name, value in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            yield name.removeprefix(ENVIRONMENT_PREFIX).lower(), value, f"environment {name}"
    for name, value in flags.items():
        yield name, value, f"flag --{name.replace('_', '-')}"


def _find(names: Mapping[str, Setting | Table], name: str, origin: str) -> Setting | Table:
    if name in names:
        return names[name]
    near = nearest(name, names)
    hint = f'; did you mean "{names[near].key}"?' if near else ""
    raise StartupError(f'config: unknown key "{quote(name)}" ({origin}){hint}')


def _refuse_misplaced(names: Mapping[str, object], found: Setting | Table, value: Any, origin: str) -> None:
    """Refuse a setting below a [table]: TOML reads it as part of the table, and it would do nothing."""
    for name in value if isinstance(found, Table) and isinstance(value, dict) else ():
        if name in names:
            raise StartupError(f"config: {name} is below [{found.key}]; settings belong above it ({origin})")


def expand_home(path: Path) -> Path:
    """Replace `~` in a path; StartupError when there is no such home."""
    try:
        return path.expanduser()
    except RuntimeError:
        if str(path) == "~":
            raise StartupError("there is no home directory for this user; set HOME") from None
        raise StartupError(
            f"{path} is in a home directory that does not exist; write the whole path, or set HOME"
        ) from None


def lacks_home(path: Path) -> bool:
    """Whether a path is in our home directory and we have none: HOME is not set, and our user id is unknown."""
    try:
        path.expanduser()
    except RuntimeError:
        return path.parts[0] == "~"
    return False


def _read_file(path: Path) -> dict[str, Any]:
    if lacks_home(path):
        return {}
    try:
        # With or without the byte order mark of Windows' Notepad.
        text = expand_home(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartupError(
            f"config: cannot read {safe_text(path)}: {reason}; fix it or pass another file with --config"
        ) from None
    try:
        return parse_toml(text)
    # RecursionError: tomllib leaves deep nesting to Python's own limit.
    except (ValueError, RecursionError) as error:
        raise StartupError(f"config: {safe_text(path)} is not valid TOML: {safe_text(error)}") from None


# For people: the file written on the first run, and the table in .github/docs/settings.md.


def template(declared: Declarations) -> str:
    """A configuration file with every setting at its default, commented out."""
    lines = [
        "# deepseek-cursor-proxy. Remove the # in front of a line to change it.",
        "# Flags win over environment variables, those over this file, this file over the defaults shown.",
    ]
    # Tables last, because TOML reads what follows a table as part of it.
    for each in sorted(declared, key=lambda each: isinstance(each, Table)):
        lines += ["", *(f"# {line}" for line in _lines(each))]
    return "\n".join(lines) + "\n"


def _lines(each: Setting | Table) -> list[str]:
    if isinstance(each, Table):
        return [each.help, *each.example]
    choices = f" ({', '.join(each.choices)})" if each.choices else ""
    return [each.help + choices, f"{each.key} = {to_toml(each.default)}"]


def settings_table(declared: Declarations) -> str:
    """The settings as a Markdown table, with a heading row before each group."""
    rows = ["| flag and key | default | meaning |", "|---|---|---|"]
    for name, settings in groupby(declared, lambda each: "" if isinstance(each, Table) else each.group):
        rows += [f"| **{name or 'tables of the file'}** | | |", *map(_row, settings)]
    return "\n".join(rows)


def _row(each: Setting | Table) -> str:
    if isinstance(each, Table):
        return f"| `[{each.key}]` | `{{}}` | {each.help} |"
    choices = f" ({', '.join(f'`{choice}`' for choice in each.choices)})" if each.choices else ""
    flag = each.flag.replace("--", "--[no-]") if each.can_be_negated else each.flag
    restart = "; needs a restart" if each.needs_restart else ""
    text = each.help.replace("<", "&lt;")
    return f"| `{flag}` · `{each.key}` | `{to_toml(each.default)}` | {text}{choices}{restart} |"
