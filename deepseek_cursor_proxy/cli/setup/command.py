"""The `setup` command: show what would change, ask, change it; or print it, or undo it. Without a client: list them.

Nothing is written without a yes, on a terminal or by --yes. Keys are hidden in what is shown.
"""

import argparse
import contextlib
import difflib
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.cli import access_key, questions, running_proxy
from deepseek_cursor_proxy.cli.parser import add_yes, config_path, load, program_name
from deepseek_cursor_proxy.cli.setup import clients, files
from deepseek_cursor_proxy.cli.setup.clients import (
    CLIENTS,
    HIDDEN_KEY,
    Client,
    Machine,
    ProxyEndpoint,
    missing_variable,
    status,
)
from deepseek_cursor_proxy.cli.setup.files import FileChange, Refusal, SetupHistory
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey, is_credential
from deepseek_cursor_proxy.config.https_proxy import local_url
from deepseek_cursor_proxy.config.settings import HOME
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.deepseek.model_names import KNOWN_MODELS
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import redact_keys

CURSOR = "cursor"
# On this machine; a proxy elsewhere may take longer.
_CONNECT_SECONDS = 2.0
NAMES = (*CLIENTS, CURSOR)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", nargs="?", type=_name, choices=NAMES, metavar="CLIENT", help=", ".join(NAMES))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--print", action="store_true", help="print the lines to add by hand; change nothing")
    which.add_argument("--undo", action="store_true", help="undo what setup changed")
    clients.add_model_flag(parser, "model of the client")
    add_yes(parser)
    parser.add_argument(
        "--flash-subagents",
        action="store_true",
        help="claude-code: the proxy sends sub-agents and small requests to Flash; `usage` shows the saving",
    )
    parser.add_argument("--status-line", action="store_true", help="claude-code: show a chat's use in its status line")
    parser.add_argument("--url", type=_root_url, help="address of the proxy (default: the running one)")


def _name(typed: str) -> str:
    """The name of a client that may be called by its command, as for `run`."""
    return next((each.name for each in CLIENTS.values() if each.program == typed), typed)


def _root_url(text: str) -> str:
    """The address of a proxy, without /v1 at its end."""
    with contextlib.suppress(ValueError):
        address = urlsplit(text)
        if address.scheme in ("http", "https") and address.hostname and address.port != 0 and not address.query:
            return text.rstrip("/").removesuffix("/v1").rstrip("/")
    raise argparse.ArgumentTypeError(f"{text!r} is not the address of a proxy, such as http://127.0.0.1:9000")


def run(options: dict[str, Any]) -> int:
    """Returns the exit code; raises StartupError."""
    name, is_undo, has_rule = options["client"], options["undo"], options["flash_subagents"]
    if has_rule and name != "claude-code":
        raise StartupError("--flash-subagents is for claude-code; for others set subagent_model in the settings")
    if options["status_line"] and name != "claude-code":
        raise StartupError("--status-line is for claude-code; no other client has one")
    config = load(options).config
    endpoint, public_url = _endpoint(config, options["url"])
    status_line = _status_line_command() if options["status_line"] else ""
    endpoint = replace(endpoint, model=options["client_model"], status_line=status_line)
    if name == CURSOR:
        return _print_cursor(config, config_path(options), endpoint, public_url)
    machine = Machine.here()
    if name is None:
        return _list(machine, endpoint)
    if has_rule or is_undo:
        endpoint = replace(endpoint, rule_file=expand_home(config_path(options)))
    client = CLIENTS[name]
    if options["print"]:
        return _print_by_hand(client, machine, endpoint)
    if not options["yes"]:
        questions.require_terminal("setup")
    if not is_undo:
        endpoint = _with_key(client, endpoint)
        _refuse_rival(client, client.targets(machine, endpoint)[0].path)
    code = _change(client, machine, endpoint, options)
    if code == 0 and not is_undo:
        _print_notes(client, machine, endpoint, config)
    return code


# The proxy that clients will use …


def _endpoint(config: ProxyConfig, url: str | None) -> tuple[ProxyEndpoint, str | None]:
    """The address by the flag, else of the proxy that runs with this store, else by the settings; its public URL."""
    variable = clients.key_variable(config)
    if url is not None:
        return ProxyEndpoint(url, variable), url
    if (found := running_proxy.find_running(config)) is not None:
        return ProxyEndpoint(found.base_url.removesuffix("/v1"), variable), found.public_url
    return ProxyEndpoint(local_url(config.host, config.port), variable), None


def _status_line_command() -> str:
    """The script alone, without the modules that Python looks for at its start: that halves the time it takes."""
    if not proxy.has("status_line"):
        raise StartupError("--status-line: this proxy has no status line")
    from deepseek_cursor_proxy.features.status_line import script

    if not Path(script.__file__).is_file():
        raise StartupError("--status-line needs an installation with files: install it with pip, pipx or uv tool")
    return shlex.join((Path(sys.executable).as_posix(), "-I", "-S", Path(script.__file__).as_posix()))


def _with_key(client: Client, endpoint: ProxyEndpoint) -> ProxyEndpoint:
    """With the key itself, for a client that cannot name a variable."""
    if not client.needs_key:
        return endpoint
    key = os.environ.get(endpoint.key_variable, "").strip()
    if not key:
        key = questions.ask_key(f"{client.title} keeps the key in its file; type {endpoint.key_word}: ")
    if not is_credential(key):
        raise StartupError(
            f"{client.title} needs the key itself in its file: set {endpoint.key_variable} for this command, as in "
            f"`{endpoint.key_variable}={HIDDEN_KEY} {program_name()} setup {client.name}`"
        )
    return replace(endpoint, key=key)


# What is done …


def _refuse_rival(client: Client, path: Path) -> None:
    if client.rival is not None and not path.exists() and (rival := path.with_name(client.rival)).exists():
        raise StartupError(
            f"{client.title} is set up by {rival}, which it would no longer read beside a {path.name}; "
            f"`{program_name()} setup {client.name} --print` shows what to add"
        )


def _change(client: Client, machine: Machine, endpoint: ProxyEndpoint, options: Mapping[str, Any]) -> int:
    """Set the client up, or undo that: show the changes, ask, make them. The exit code."""
    is_undo = options["undo"]
    history = SetupHistory(expand_home(HOME) / "setup", date.today())
    try:
        plan = files.plan(client.name, client.targets(machine, endpoint), history, is_undo=is_undo)
        if not any(change.is_needed for change in plan):
            state = "has nothing from setup" if is_undo else f"already uses {endpoint.root}"
            print(f"{client.title} {state}; nothing was changed.")
            if is_undo:
                history.forget(client.name)
            return 0
        for change in plan:
            _print_change(change, endpoint)
        if not options["yes"]:
            questions.confirm("setup", "Make this change?")
        if is_undo:
            files.undo(client.name, plan, history)
            print(f"{client.title} is as it was before setup.")
            return 0
        backups = files.make(client.name, plan, history)
    except Refusal as refusal:
        print(f"deepseek-cursor-proxy: nothing was changed. {refusal}", file=sys.stderr)
        if is_undo:
            _print_backups(history.backups(client.name))
        else:
            _print_by_hand(client, machine, replace(endpoint, key=None))
        return 2
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        raise StartupError(f"nothing was changed: {reason}") from None
    undo = f"`{program_name()} setup {client.name} --undo`"
    print(f"{client.title} now uses {endpoint.root}; {undo} reverts it.")
    _print_backups(backups)
    return 0


def _print_backups(backups: Sequence[Path]) -> None:
    for backup in backups:
        print(f"  before   {backup}")


# A key after its name; no variable and no name of one, and no price: `input_cost_per_token: 1.32e-06`.
_KEY_VALUE = re.compile(
    r"""((?<!env_)(?:keys?|token|secret|password|authorization)["']?\s*[:=]\s*["'\[]*(?:bearer\s+)?)"""
    r"""(?![$\]{]|[A-Z_]+_KEY\b|\d+[.e][\de.-]+,?$)[^\s"',\[]+""",
    re.IGNORECASE,
)


def _print_change(change: FileChange, endpoint: ProxyEndpoint) -> None:
    if change.title and change.is_needed:
        lines = len((change.after or change.now or b"").splitlines())
        what = "deleted" if change.after is None else "new" if change.now is None else "changed"
        print(f"{change.path}: {change.title}, {what}, {lines} lines (--print prints them)")
        return
    source, target = (str(change.path) if data is not None else "no file" for data in (change.now, change.after))
    old, new = ((data or b"").decode("utf-8", "replace").splitlines() for data in (change.now, change.after))
    for line in difflib.unified_diff(old, new, source, target, lineterm=""):
        shown = line.replace(endpoint.key, HIDDEN_KEY) if endpoint.key else line
        print(redact_keys(_KEY_VALUE.sub(rf"\1{HIDDEN_KEY}", shown)))


# What is printed …


def _list(machine: Machine, endpoint: ProxyEndpoint) -> int:
    print(f"{'client':<13} {'installed':<13} uses {endpoint.root}")
    for client in CLIENTS.values():
        found = status(client, machine, endpoint)
        here = "yes" if found.is_installed else "settings only" if found.has_file else "-"
        words = {True: "yes", False: "no", None: f"unknown: {found.fault}"}
        print(f"{client.name:<13} {here:<13} {words[found.points_here]}")
    setup = f"{program_name()} setup"
    print(f"{CURSOR:<13} {'':<13} by hand: `{setup} {CURSOR}` prints what to enter")
    print(f"`{setup} codex`, for example, shows the change and asks first; --undo reverts it.")
    return 0


def _print_by_hand(client: Client, machine: Machine, endpoint: ProxyEndpoint) -> int:
    for target in client.targets(machine, endpoint):
        print(f"In {target.path}:\n\n{target.editor.by_hand()}")
    for line in client.notes(machine, endpoint):
        print(line)
    return 0


def _print_notes(client: Client, machine: Machine, endpoint: ProxyEndpoint, config: ProxyConfig) -> None:
    if config.served_keys:
        _offer_access_key(config, endpoint.key_variable if client.key_variable is None else client.key_variable)
    if variable := missing_variable(client, machine, endpoint):
        print(f"{client.title} reads {endpoint.key_word} from {variable}, which is not set. Run:")
        for line in _set_variable(variable, machine):
            print(f"  {line}")
    if endpoint.rule_file is not None:
        print("Restart the proxy, so that it reads subagent_model.")
    if endpoint.model == clients.FLASH:
        print(f"DeepSeek Flash answers. --model {clients.PRO} chooses V4 Pro, for three to seven times the money.")
    for line in client.notes(machine, endpoint):
        print(line)
    if not _is_answered(endpoint.root):
        print(f"No proxy runs at {endpoint.root} yet. Start it: {program_name()}")


def _set_variable(variable: str, machine: Machine) -> Iterator[str]:
    """How to set a variable, in this shell and in later ones."""
    if machine.system == "win32":
        yield f"setx {variable} {HIDDEN_KEY}      (for every terminal that you open after it)"
        return
    shell = Path(machine.environment.get("SHELL", "")).name
    # Terminals of macOS start login shells, and as one bash does not read ~/.bashrc.
    bash = "~/.bash_profile" if machine.system == "darwin" else "~/.bashrc"
    file = {"zsh": "~/.zshrc", "bash": bash}.get(shell, "the file that your shell reads at its start")
    yield f"export {variable}={HIDDEN_KEY}"
    yield f"To keep it, add that line to {file}."


def _is_answered(root: str) -> bool:
    """Whether something listens at an address."""
    address = urlsplit(root)
    port = address.port or (443 if address.scheme == "https" else 80)
    with contextlib.suppress(OSError), socket.create_connection((address.hostname or "", port), _CONNECT_SECONDS):
        return True
    return False


def _offer_access_key(config: ProxyConfig, variable: str) -> None:
    """The proxy accepts only access keys; offer to make one if the client's variable has none."""
    present = os.environ.get(variable, "") if variable else ""
    if present and any(AccessKey.of(present).digest == key.digest for key in config.served_keys):
        return
    if not questions.can_ask():
        print(f"The proxy accepts only its access_keys: `{program_name()} access-key --new` makes one.")
        return
    if questions.is_agreed("The proxy accepts only its access_keys. Make a new one?"):
        access_key.print_new()


def _print_cursor(config: ProxyConfig, path: Path, endpoint: ProxyEndpoint, public_url: str | None) -> int:
    key = f"{endpoint.key_word} ({HIDDEN_KEY})"
    # public_hosts names a tunnel that the proxy did not open.
    public = public_url or next((f"https://{host}" for host in config.public_hosts), None)
    base_url = f"{public}/v1" if public else endpoint.base_url
    # Another host has names of its own.
    model = endpoint.model if config.upstream_model in KNOWN_MODELS else config.upstream_model
    lines = [*steps(base_url, key, model, is_public=public is not None), ""]
    for line in (*lines, *long_context(model, config.models, str(path))):
        print(line)
    return 0


# Names of Cursor's own for which it allows the whole context; others get 200,000 tokens.
_LONG_NAME = "gpt-5.6-sol"


def steps(base_url: str, key: str, model: str, *, is_public: bool) -> Iterator[str]:
    yield "In Cursor open Settings > Models."
    yield f"1. Add a model and switch it on          {model}"
    yield f"2. OpenAI API Key: paste and switch on   {key}"
    yield f"3. Override OpenAI Base URL: switch on   {base_url}"
    yield f"4. Choose {model} in the chat and ask something; the proxy prints four lines for it."
    if not is_public:
        yield ""
        yield "Cursor calls from its own servers, which cannot reach this address: start the proxy with a tunnel"
        yield f"(`{program_name()} --tunnel`), then run this again for the public address."


def long_context(model: str, models: Mapping[str, str], config_path: str) -> Iterator[str]:
    """How to get more than Cursor's 200,000 tokens."""
    names = [name for name, target in models.items() if target == model and not name.endswith("*")]
    yield "For the whole context of 1M tokens: Cursor allows only 200,000 for a model that it does not know. Use one of"
    yield "its own model names that allows more, in Max Mode, and let the proxy answer for it."
    if names:
        yield f"[models] already maps {names[0]} to {model}: add and choose {names[0]} in step 1."
        return
    yield f"Put this into {config_path}, restart the proxy, and add and choose {_LONG_NAME} in step 1:"
    yield ""
    yield "[models]"
    yield f'"{_LONG_NAME}" = "{model}"'
