"""Where the values of settings come from, and what people get to read about them.

Later sources win: defaults, file, environment, flags. What is not understood is refused with the place it came from,
never silently replaced. Which settings there are is told by config, which calls this room.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config.settings import ENVIRONMENT_PREFIX, Setting, Table, from_toml, nearest, quoted, toml
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import safe_text

Declared = Sequence[Setting | Table]


class Given(NamedTuple):
    """By field: the values that some source has, and for each that is declared where its value comes from."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


def read(declared: Declared, path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Given:
    """The file if there is one, then the environment, then flags; StartupError for what is wrong."""
    values: dict[str, Any] = {}
    origins = {each.field: "default" for each in declared}
    names = _names(declared)
    for name, value, origin in _sources(path, environment, flags):
        found = _by_name(names, name, origin)
        _refuse_misplaced(names, found, value, origin)
        values[found.field] = found.parse(value, origin)
        origins[found.field] = origin
    return Given(values, origins)


def _sources(path: Path, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Name, value and origin of everything that is given, in the order in which later ones win."""
    for name, value in _read_file(path).items():
        yield name, value, str(path)
    for name, value in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            yield name.removeprefix(ENVIRONMENT_PREFIX).lower(), value, f"environment {name}"
    for name, value in flags.items():
        yield name, value, f"flag --{name.replace('_', '-')}"


def _names(declared: Declared) -> dict[str, Setting | Table]:
    # The field's own name works as well: it is what Python callers and older files write.
    return {name: each for each in declared for name in (each.field, each.key)}


def _by_name(names: Mapping[str, Setting | Table], name: str, origin: str) -> Setting | Table:
    if name in names:
        return names[name]
    near = nearest(name, names)
    hint = f'; did you mean "{names[near].key}"?' if near else ""
    raise StartupError(f'config: unknown key "{quoted(name)}" ({origin}){hint}')


def _refuse_misplaced(names: Mapping[str, object], found: Setting | Table, value: Any, origin: str) -> None:
    """TOML takes every line below a [table] for a part of it; a setting that ended up there would do nothing."""
    for name in value if isinstance(found, Table) and isinstance(value, dict) else ():
        if name in names:
            raise StartupError(f"config: {name} is below [{found.key}]; settings belong above it ({origin})")


def expanded(path: Path) -> Path:
    """The path with its `~` replaced; StartupError when there is no such home."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise StartupError(
            f"{path} is in a home directory that does not exist; write the whole path, or set HOME"
        ) from None


def lacks_home(path: Path) -> bool:
    """Whether a path lies in our home directory and we have none: HOME is not set, and no user has our number."""
    try:
        path.expanduser()
    except RuntimeError:
        return path.parts[0] == "~"
    return False


def _read_file(path: Path) -> dict[str, Any]:
    if lacks_home(path):
        return {}
    try:
        # With or without the mark that Windows' Notepad puts in front.
        text = expanded(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartupError(
            f"config: cannot read {safe_text(path)}: {reason}; fix it or pass another file with --config"
        ) from None
    try:
        return from_toml(text)
    # tomllib leaves numbers of thousands of digits and deep nesting to Python's own limits.
    except (ValueError, RecursionError) as error:
        raise StartupError(f"config: {safe_text(path)} is not valid TOML: {safe_text(error)}") from None


# What people read: the file written on the first run, and the table in .github/docs/settings.md.


def template(declared: Declared) -> str:
    """A configuration file with every setting at its default, commented out."""
    lines = [
        "# deepseek-cursor-proxy. Remove the # in front of a line to change it.",
        "# Flags win over environment variables, those over this file, this file over the defaults shown.",
    ]
    # Tables last, because TOML takes what follows a table for a part of it.
    for each in sorted(declared, key=lambda each: isinstance(each, Table)):
        lines += ["", *(f"# {line}" for line in _lines(each))]
    return "\n".join(lines) + "\n"


def _lines(each: Setting | Table) -> list[str]:
    if isinstance(each, Table):
        return [each.help, *each.example]
    choices = f" ({', '.join(each.choices)})" if each.choices else ""
    return [each.help + choices, f"{each.key} = {toml(each.default)}"]


def settings_table(declared: Declared) -> str:
    """The settings as a Markdown table, with a row of its own before each group."""
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
    return f"| `{flag}` · `{each.key}` | `{toml(each.default)}` | {text}{choices}{restart} |"
