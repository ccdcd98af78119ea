"""Keys of clients: a new one, with a name and limits or without, or the digest of one that is typed or piped in.

No key is stored. With a name, a file of keys.d gets the digest: `access-key --new ann --usd-per-day 5`.
"""

import argparse
import json
import sys
from contextlib import suppress
from typing import Any

from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.cli.parser import config_path
from deepseek_cursor_proxy.config.access_keys import AccessKey, is_credential, new_key
from deepseek_cursor_proxy.config.declaration import to_toml, to_toml_key
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage import private_files

# What a flag may set; numbers are written as numbers.
_NUMBERS = {
    "usd_per_day": "daily budget in US dollars",
    "usd_per_month": "monthly budget in US dollars",
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "concurrent": "requests at once",
    "warn_at": "share of a budget at which a line is logged, such as 0.8",
}
_TEXTS = {
    "expires": "last day it is served, such as 2027-03-31",
    "group": "group whose limits it shares",
    "upstream_key_env": "variable with the key that DeepSeek gets for it",
    "note": "your own note about it",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    help = "generate a new key; with a name, write its table into keys.d beside the configuration file"
    parser.add_argument("--new", nargs="?", const="", metavar="NAME", help=help)
    parser.add_argument("--models", help="models it may use, with commas between")
    for name, help in (_NUMBERS | _TEXTS).items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=help)


def run(options: dict[str, Any]) -> None:
    given = {name: options[name] for name in ("models", *_NUMBERS, *_TEXTS) if options.get(name) is not None}
    name = options.get("new")
    if given and not name:
        raise StartupError("limits are for a named key: access-key --new NAME --usd-per-day 5")
    if name:
        _write_named(name, given, options)
        return
    if name is not None:
        print_new()
        return
    # Not an argument, so that no shell history keeps it.
    if not is_credential(key := questions.read_secret("Key: ")):
        raise StartupError("that is not a key: one line of visible ASCII without spaces, typed or piped in")
    access_key = AccessKey.of(key)
    print(access_key.line)
    if access_key.is_guessable:
        print("This key is short enough to guess; `access-key --new` makes a better one.", file=sys.stderr)


def print_new() -> None:
    key = new_key()
    print(f"{key}   the key, for the client; it is shown only once")
    print(f"{AccessKey.of(key).line}   its digest, for access_keys")


def _write_named(name: str, given: dict[str, str], options: dict[str, Any]) -> None:
    """Write keys.d/NAME.toml and print the key."""
    from deepseek_cursor_proxy.config.named_keys import named_key

    key = new_key()
    fields: dict[str, Any] = {"key": AccessKey.of(key).line, **given}
    if "models" in given:
        fields["models"] = [each.strip() for each in given["models"].split(",")]
    for field in given.keys() & _NUMBERS.keys():
        # A text that is no number is for the parser to refuse.
        with suppress(ValueError):
            fields[field] = json.loads(given[field])
    named_key(f"keys.{to_toml_key(name)}", fields, "flags")
    path = expand_home(config_path(options)).parent / "keys.d" / f"{name}.toml"
    if path.exists():
        raise StartupError(f"{path} exists; to rotate the key, add the digest of one that `access-key --new` makes")
    lines = [f"[keys.{to_toml_key(name)}]", *(f"{field} = {to_toml(value)}" for field, value in fields.items())]
    try:
        private_files.write(path, "\n".join([*lines, ""]).encode())
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from None
    print(f"{key}   the key of {name}; it is shown only once")
    print(f"Written to {path}. A running proxy reads it at SIGHUP, or when it is started again.")
