"""The clients that `run` starts: the variables, flags and files with which each uses the proxy for one run.

Their content is in `clients`, as `setup` writes it into the clients' own files. Variables are preferred, as flags of
another user's process can be read; no flag and no file holds a key. The files are in a folder that is gone after the
run. Each row was tried with the version in tests/interop.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.cli.setup import clients, codex_catalogue
from deepseek_cursor_proxy.cli.setup.clients import PROVIDER, Machine, ProxyEndpoint
from deepseek_cursor_proxy.deepseek.model_names import CONTEXT_TOKENS, OUTPUT_TOKENS
from deepseek_cursor_proxy.errors import StartupError


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
    config: dict[str, Any] = {}
    for path, value in clients.opencode_values(endpoint).items():
        *parents, name = path
        place = config
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return Launch({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


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
