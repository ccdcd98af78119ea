"""The `run` command: start a client that uses the proxy, until it ends; its configuration stays as it is.

The proxy that runs with this store is used; without one, a proxy of our own runs in this process and ends with the
client. The client is in our process group and has our terminal: Ctrl-C, keys and the window's size reach it without
us, and its screen is its own, so what our proxy prints goes to a log file. Its exit code is ours.

What each client gets for one run is what `setup` writes into its files (`setup/clients`). Variables are preferred, as
flags of another user's process can be read; no flag and no file holds a key. The files are in a folder that is gone
after the run. Each row of RUNNABLE was tried with the version in tests/interop.
"""

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from deepseek_cursor_proxy.cli import questions, running_proxy, serve
from deepseek_cursor_proxy.cli.parser import config_path, program_name
from deepseek_cursor_proxy.cli.setup import clients, codex_catalogue
from deepseek_cursor_proxy.cli.setup.clients import CLIENTS, HIDDEN_KEY, PROVIDER, Machine, ProxyEndpoint
from deepseek_cursor_proxy.cli.setup.json_text import JsonEdit
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import why_not_sendable
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.config.settings import HOME
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.deepseek.model_names import CONTEXT_TOKENS, OUTPUT_TOKENS
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.storage import private_files

_MOST_LOGS = 10
# The terminal sends these to the client as well.
_FROM_TERMINAL = ("SIGINT", "SIGQUIT", "SIGBREAK")
# Windows has no SIGHUP, and its SIGTERM ends a process without asking.
_FORWARDED = ("SIGTERM", "SIGHUP")


@dataclass(frozen=True)
class Launch:
    """What a client gets for one run; a variable that is None is unset, and flags stand before those of the user."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    flags: Sequence[str] = ()
    files: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Runnable:
    """A client by its command, with the command that installs it.

    `launch` gets an endpoint with the key, which is also in the variable that the endpoint names, and the folder.
    """

    program: str
    title: str
    install: str
    launch: Callable[[ProxyEndpoint, Path], Launch]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [flags] CLIENT [ARGUMENTS …]"
    clients.add_model_flag(parser, "the model that the client begins with")
    parser.add_argument("client", nargs="?", metavar="CLIENT", help=", ".join(RUNNABLE))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="the client's own, unchanged")


def run(options: dict[str, Any]) -> int:
    """Returns the exit code of the client; raises StartupError."""
    if options["client"] is None:
        return _list()
    client = _find(options["client"])
    program = shutil.which(client.program)
    if program is None:
        raise StartupError(f"{client.title} is not installed: no `{client.program}` is on the PATH; `{client.install}`")
    loaded = serve.load_usable(options)
    endpoint = ProxyEndpoint("", clients.key_variable(loaded.config), model=options["client_model"])
    endpoint = replace(endpoint, key=_key(endpoint, client))
    with (
        _proxy(loaded, config_path(options), client) as root,
        TemporaryDirectory(prefix="deepseek-cursor-proxy-", ignore_cleanup_errors=True) as folder,
    ):
        launch = client.launch(replace(endpoint, root=root), Path(folder))
        for path, text in launch.files.items():
            private_files.write(path, text.encode())
        variables = _environment(os.environ, {endpoint.key_variable: endpoint.key, **launch.variables})
        return _run(program, [*launch.flags, *options["arguments"]], variables)


def _list() -> int:
    print(f"{'client':<10} installed")
    for client in RUNNABLE.values():
        print(f"{client.program:<10} {'yes' if shutil.which(client.program) else f'no: {client.install}'}")
    print(f"`{program_name()} run codex`, for example, starts Codex with the proxy. Others: `{program_name()} setup`.")
    return 0


def _find(name: str) -> Runnable:
    """The client of this name, its command or its name in `setup`."""
    known = CLIENTS.get(name)
    if client := RUNNABLE.get(known.program if known else name):
        return client
    setup = f"`{program_name()} setup`"
    if known or name == "cursor":
        raise StartupError(f"{name} cannot be pointed to the proxy for one run; {setup[:-1]} {name}` sets it up")
    raise StartupError(f"run knows no client {name!r}, only {', '.join(RUNNABLE)}; {setup} lists others")


def _key(endpoint: ProxyEndpoint, client: Runnable) -> str:
    """The key from its variable, or asked for."""
    variable = endpoint.key_variable
    if key := os.environ.get(variable, "").strip():
        if problem := why_not_sendable(key):
            raise StartupError(f"{variable}: {problem}")
        return key
    key = questions.ask_key(f"{client.title} needs {endpoint.key_word} (hidden, kept for this run only): ")
    if not key:
        raise StartupError(
            f"{client.title} needs {endpoint.key_word}: set {variable}, as in "
            f"`{variable}={HIDDEN_KEY} {program_name()} run {client.program}`"
        )
    return key


def _environment(inherited: Mapping[str, str], variables: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**inherited, **variables}
    # The proxy is on this machine, and one in HTTP_PROXY would look for it on its own.
    for name in ("NO_PROXY", "no_proxy"):
        merged[name] = ",".join(filter(None, (inherited.get(name), "127.0.0.1", "localhost")))
    return {name: value for name, value in merged.items() if value is not None}


# The proxy …


@contextlib.contextmanager
def _proxy(loaded: LoadedConfig, config_file: Path, client: Runnable) -> Iterator[str]:
    """The address, without /v1, of the proxy that runs with this store, else of our own."""
    if (found := running_proxy.find_running(loaded.config)) is not None:
        yield found.base_url.removesuffix("/v1")
        return
    path = _log_path(loaded.config, client)
    try:
        # The streams have to be files: a redirection to them is all that the console and every warning need.
        with path.open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            with standard_streams.command_streams(), standard_streams.serving_streams():
                with serve.serving_for_child(loaded, config_file) as server:
                    yield f"http://127.0.0.1:{server.server_port}"
    finally:
        if path.exists() and path.stat().st_size:
            print(f"deepseek-cursor-proxy: the log of this run is {path}", file=sys.stderr)
        elif path != Path(os.devnull):
            # `claude --version`, for example, asks nothing.
            path.unlink(missing_ok=True)


def _log_path(config: ProxyConfig, client: Runnable) -> Path:
    """A new private file beside the store; all but the newest logs of earlier runs are deleted."""
    store = config.reasoning_content_path
    folder = expand_home(HOME if str(store) == ":memory:" else store.parent)
    path = folder / f"run-{time.strftime('%Y%m%d-%H%M%S')}-{client.program}-{os.getpid()}.log"
    try:
        private_files.make_directory(folder)
        private_files.create(path)
    except OSError:
        # The proxy runs in a read-only home as well.
        return Path(os.devnull)
    for old in sorted(folder.glob("run-*.log"))[:-_MOST_LOGS]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


# The client …


def _run(program: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Run the client in the foreground; its exit code, or 128 and the number of the signal that ended it."""
    child: subprocess.Popen[bytes] | None = None

    def handle(number: int, _frame: FrameType | None) -> None:
        if child is not None and signal.Signals(number).name in _FORWARDED:
            child.send_signal(number)

    names = (*_FROM_TERMINAL, *_FORWARDED)
    numbers = [number for name in names if (number := getattr(signal, name, None)) is not None]
    # A signal that is ignored, as by `nohup`, stays so, also in the client.
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, handle)
    try:
        child = subprocess.Popen([program, *arguments], env=environment)
        code = _wait(child)
    except OSError as error:
        raise StartupError(f"cannot start {program}: {error.strerror}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _wait(child: "subprocess.Popen[bytes]") -> int:
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=lambda: ended.put(child.wait()), name="client", daemon=True).start()
    while True:
        # The system may give a signal to any thread, and Python calls its handler between two waits of this one. On
        # Windows a wait without a timeout also blocks Ctrl-C.
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=0.5)


# What each client gets …


def _claude(endpoint: ProxyEndpoint, folder: Path) -> Launch:
    here = Machine.here()
    machine = replace(here, environment={**here.environment, endpoint.key_variable: endpoint.key or ""})
    place = machine.folder("CLAUDE_CONFIG_DIR", machine.home / ".claude")
    settings = (place / "settings.json", Path(".claude/settings.json"), Path(".claude/settings.local.json"))
    token = "ANTHROPIC_AUTH_TOKEN"
    for found in clients.other_values(machine, endpoint, [], [(path, token) for path in settings]):
        raise StartupError(
            f"Claude Code would send {found} in place of {endpoint.key_word}; remove it there, or set "
            "CLAUDE_CONFIG_DIR to another folder for this run"
        )
    variables = clients.claude_code_variables(endpoint)
    # The `env` of the user's own settings goes before the environment, and this file before both. It would also send
    # the other key.
    path, other = folder / "settings.json", "ANTHROPIC_API_KEY"
    files = {path: json.dumps({"env": {**variables, other: ""}})}
    return Launch({**variables, token: endpoint.key, other: None}, ("--settings", str(path)), files)


def _codex(endpoint: ProxyEndpoint, folder: Path) -> Launch:
    path = folder / clients.CODEX_CATALOGUE
    provider = {f"{clients.CODEX_TABLE}.{name}": value for name, value in clients.codex_provider(endpoint).items()}
    values = {**clients.codex_keys(endpoint, path), **provider}
    # What is no TOML counts as text, so nothing has to be quoted.
    flags = [word for name, value in values.items() for word in ("-c", f"{name}={value}")]
    return Launch(flags=flags, files={path: codex_catalogue.text(endpoint.models)})


def _opencode(endpoint: ProxyEndpoint, folder: Path) -> Launch:
    return Launch({"OPENCODE_CONFIG_CONTENT": JsonEdit(clients.opencode_values(endpoint)).by_hand()})


def _copilot(endpoint: ProxyEndpoint, folder: Path) -> Launch:
    # What the user has set for another provider; each of these goes before one of ours.
    others = ("BEARER_TOKEN", "API_KEY_COMMAND", "HEADERS", "TRANSPORT", "MODEL_ID", "WIRE_MODEL", "MAX_OUTPUT_TOKENS")
    values = {
        "BASE_URL": endpoint.base_url,
        "TYPE": "openai",
        "API_KEY": endpoint.key,
        # It does not know how much these models can read.
        "MAX_PROMPT_TOKENS": str(CONTEXT_TOKENS - OUTPUT_TOKENS),
        **dict.fromkeys(others),
    }
    variables = {f"COPILOT_PROVIDER_{name}": value for name, value in values.items()}
    return Launch({**variables, "COPILOT_MODEL": endpoint.model})


def _qwen(endpoint: ProxyEndpoint, folder: Path) -> Launch:
    variables = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.key, "OPENAI_MODEL": endpoint.model}
    return Launch(variables, ("--auth-type", "openai"))


def _aider(endpoint: ProxyEndpoint, folder: Path) -> Launch:
    path = folder / clients.AIDER_METADATA
    values = {**clients.aider_keys(endpoint), "model-metadata-file": str(path), "openai-api-key": endpoint.key}
    variables = {f"AIDER_{name.upper().replace('-', '_')}": value for name, value in values.items()}
    return Launch(variables, files={path: json.dumps(clients.aider_models(endpoint))})


def _pi(endpoint: ProxyEndpoint, folder: Path) -> Launch:
    # An extension, because the file for models has no flag.
    path = folder / f"{PROVIDER}.js"
    provider = json.dumps(clients.pi_provider(endpoint))
    extension = f"export default (pi) => pi.registerProvider({json.dumps(PROVIDER)}, {provider});\n"
    flags = ("--extension", str(path), "--provider", PROVIDER, "--model", endpoint.model)
    return Launch(flags=flags, files={path: extension})


RUNNABLE = {
    each.program: each
    for each in (
        Runnable("claude", "Claude Code", "npm install -g @anthropic-ai/claude-code", _claude),
        Runnable("codex", "Codex", "npm install -g @openai/codex", _codex),
        Runnable("opencode", "opencode", "npm install -g opencode-ai", _opencode),
        Runnable("copilot", "GitHub Copilot", "npm install -g @github/copilot", _copilot),
        Runnable("qwen", "Qwen Code", "npm install -g @qwen-code/qwen-code", _qwen),
        Runnable("aider", "aider", "python -m pip install aider-install && aider-install", _aider),
        Runnable("pi", "pi", "npm install -g @earendil-works/pi-coding-agent", _pi),
    )
}
