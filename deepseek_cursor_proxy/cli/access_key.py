"""Keys for access_keys: a new one, or the digest of one that is typed or piped in. No key is stored."""

import argparse
import sys
from typing import Any

from deepseek_cursor_proxy.cli import questions
from deepseek_cursor_proxy.config.access_keys import AccessKey, is_credential, new_key
from deepseek_cursor_proxy.errors import StartupError


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--new", action="store_true", help="make up a new key")


def run(options: dict[str, Any]) -> None:
    if options["new"]:
        print_new()
        return
    # Not an argument, so that no shell history keeps it.
    if not is_credential(key := questions.read_secret("Key: ")):
        raise StartupError("that is not a key: one line of visible ASCII without blanks, typed or piped in")
    access_key = AccessKey.of(key)
    print(access_key.line)
    if access_key.is_guessable:
        print("This key is short enough to guess; `access-key --new` makes a better one.", file=sys.stderr)


def print_new() -> None:
    key = new_key()
    print(f"{key}   the key, for the client; it is shown only once")
    print(f"{AccessKey.of(key).line}   its digest, for access_keys")
