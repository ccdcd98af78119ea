"""The clients that `setup` knows: where each keeps its settings, on every system, and the settings it needs.

Each was run with exactly these settings (the versions are in tests/interop), but for Zed, whose file follows its
documentation. Cursor keeps its settings in a database of its own, which nothing here touches.

A client names an environment variable, so that no file holds a key; one that cannot name a variable gets the key
itself. A Machine gets the system, the home and the environment from outside, so a test can be on any system.
"""

import argparse
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from deepseek_cursor_proxy.cli.setup import codex_catalogue
from deepseek_cursor_proxy.cli.setup.files import Target, Unreadable, WholeFile, read_text
from deepseek_cursor_proxy.cli.setup.json_text import JsonDocument, JsonEdit
from deepseek_cursor_proxy.cli.setup.marked_text import TomlEdit, YamlItems, YamlKeys
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import is_anthropic_key
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.deepseek.model_names import (
    CONTEXT_TOKENS,
    DISPLAY_NAMES,
    MODELS,
    OUTPUT_TOKENS,
    can_see_images,
)
from deepseek_cursor_proxy.deepseek.prices import USD, find_step

PRO, FLASH = MODELS
PROVIDER = "deepseek-proxy"
CODEX_CATALOGUE = "deepseek-proxy-models.json"
AIDER_METADATA = ".aider.model.metadata.json"
CODEX_TABLE = f"model_providers.{PROVIDER}"

DEEPSEEK_KEY_VARIABLE = "DEEPSEEK_API_KEY"
# Another one for access keys: on this machine, DEEPSEEK_API_KEY is the proxy's own then.
ACCESS_KEY_VARIABLE = "DEEPSEEK_PROXY_API_KEY"
# Stands for the key in what is shown.
HIDDEN_KEY = "sk-…"

JsonValues = dict[tuple[str, ...], Any]
YamlValues = Mapping[str, str | int | Sequence[str] | Mapping[str, int]]


def add_model_flag(parser: argparse.ArgumentParser, help: str) -> None:
    # Not `model`: that is the setting of the proxy.
    help = f"{help} (default %(default)s)"
    parser.add_argument("--model", dest="client_model", choices=MODELS[::-1], default=FLASH, help=help)


def key_variable(config: ProxyConfig) -> str:
    """The variable that holds the key for a proxy with these settings."""
    return ACCESS_KEY_VARIABLE if config.served_keys else DEEPSEEK_KEY_VARIABLE


@dataclass(frozen=True)
class ProxyEndpoint:
    """`root` is the address without /v1; `key_variable` holds the key that the proxy takes."""

    root: str
    key_variable: str = DEEPSEEK_KEY_VARIABLE
    key: str | None = None
    # Flash unless the user chooses Pro: it costs a seventh to a third as much, and sees pictures.
    model: str = FLASH
    # The configuration of the proxy, if it gets a rule for sub-agents.
    rule_file: Path | None = None
    # The command of Claude Code's status line, if it gets one.
    status_line: str = ""

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    @property
    def models(self) -> list[str]:
        """DeepSeek's models, the chosen one first: some clients begin with the first of a list."""
        return sorted(MODELS, key=lambda model: model != self.model)

    @property
    def key_word(self) -> str:
        is_access_key = self.key_variable == ACCESS_KEY_VARIABLE
        return "an access key of the proxy" if is_access_key else "your DeepSeek key"


@dataclass(frozen=True)
class Machine:
    """`system` as in sys.platform; `has_program` whether a command is on the PATH."""

    system: str
    home: Path
    environment: Mapping[str, str]
    has_program: Callable[[str], bool]

    @classmethod
    def here(cls) -> "Machine":
        """The machine that this process runs on; StartupError without a home directory."""
        return cls(sys.platform, expand_home(Path("~")), os.environ, lambda name: shutil.which(name) is not None)

    def folder(self, variable: str, default: Path) -> Path:
        """The folder that a variable names, else the default. An empty variable counts as absent."""
        return Path(self.environment.get(variable) or default)

    @property
    def config_home(self) -> Path:
        """XDG's, which some programs use on every system."""
        return self.folder("XDG_CONFIG_HOME", self.home / ".config")

    @property
    def app_data(self) -> Path:
        """Where programs of this system keep their settings."""
        if self.system == "win32":
            return self.folder("APPDATA", self.home / "AppData" / "Roaming")
        if self.system == "darwin":
            return self.home / "Library" / "Application Support"
        return self.config_home


@dataclass(frozen=True)
class Client:
    """A client by its name on the command line; the first of its targets is the file that has the address.

    key_variable    the variable in which it looks for the key; None if the endpoint's can be named
    needs_key       no variable can be named, so the key itself is written
    rival           a file that it would no longer read
    notes           what else to do or to know
    """

    name: str
    title: str
    program: str
    targets: Callable[[Machine, ProxyEndpoint], list[Target]]
    key_variable: str | None = None
    needs_key: bool = False
    rival: str | None = None
    notes: Callable[[Machine, ProxyEndpoint], Iterable[str]] = lambda machine, endpoint: ()


def _codex(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.folder("CODEX_HOME", machine.home / ".codex")
    path = place / CODEX_CATALOGUE
    catalogue = WholeFile(codex_catalogue.text(endpoint.models), "the catalogue of DeepSeek's models")
    edit = TomlEdit("codex", codex_keys(endpoint, path), CODEX_TABLE, codex_provider(endpoint))
    return [Target(place / "config.toml", edit), Target(path, catalogue)]


def codex_keys(endpoint: ProxyEndpoint, catalogue: Path) -> dict[str, str]:
    return {"model": endpoint.model, "model_provider": PROVIDER, "model_catalog_json": str(catalogue)}


def codex_provider(endpoint: ProxyEndpoint) -> dict[str, str]:
    return {
        "name": "DeepSeek",
        "base_url": endpoint.base_url,
        "env_key": endpoint.key_variable,
        "wire_api": "responses",
    }


def _claude_code(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.folder("CLAUDE_CONFIG_DIR", machine.home / ".claude")
    variables = claude_code_variables(endpoint)
    rules = []
    if endpoint.rule_file is not None:
        # Sub-agents and checks then ask for the model of the chat, so that the proxy knows what the rule saves.
        del variables["CLAUDE_CODE_SUBAGENT_MODEL"], variables["CLAUDE_CODE_AUTO_MODE_MODEL"]
        rules = [Target(endpoint.rule_file, TomlEdit("claude-code", {"subagent_model": FLASH}))]
    values: JsonValues = {("env", name): value for name, value in variables.items()}
    if endpoint.status_line:
        values[("statusLine",)] = {"type": "command", "command": endpoint.status_line}
    return [Target(place / "settings.json", JsonEdit(values)), *rules]


def claude_code_variables(endpoint: ProxyEndpoint) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": endpoint.root,
        "ANTHROPIC_MODEL": endpoint.model,
        # The rows of `/model`.
        "ANTHROPIC_DEFAULT_FABLE_MODEL": PRO,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": PRO,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": FLASH,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": FLASH,
        "CLAUDE_CODE_SUBAGENT_MODEL": FLASH,
        # In auto mode it checks actions by itself, since DeepSeek does not; otherwise it would run none of them.
        "CLAUDE_CODE_AUTO_MODE_SERVER": "0",
        "CLAUDE_CODE_AUTO_MODE_MODEL": FLASH,
        # `/model` lists the names of our models, too.
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "1000000",
        # As DeepSeek recommends it.
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "786432",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _claude_code_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    place = machine.folder("CLAUDE_CONFIG_DIR", machine.home / ".claude")
    if is_anthropic_key(machine.environment.get("ANTHROPIC_AUTH_TOKEN", "")):
        yield "Warning: ANTHROPIC_AUTH_TOKEN holds an Anthropic key (sk-ant-…), which the proxy refuses."
    name = "ANTHROPIC_API_KEY"
    for found in other_values(machine, endpoint, [name], [(place / "settings.json", name)]):
        yield f"Warning: {found} is also sent to the proxy, which uses ANTHROPIC_AUTH_TOKEN. Unset it."
    for found in other_values(machine, endpoint, [], [(place / "settings.json", "ANTHROPIC_AUTH_TOKEN")]):
        yield f"{found} is what Claude Code sends to the proxy: it must be {endpoint.key_word}."
    if missing_variable(CLIENTS["claude-code"], machine, endpoint):
        yield 'Without the key Claude Code says "Not logged in · Please run /login"; it needs no Anthropic account.'
    yield "`/model` opus and fable are DeepSeek V4 Pro, sonnet, haiku and all small jobs Flash."
    effort = "CLAUDE_CODE_EFFORT_LEVEL"
    for found in other_values(machine, endpoint, [effort], [(place / "settings.json", effort)]):
        yield f"{found} overrides `/effort` and --effort: remove it to choose an effort there."


def other_values(
    machine: Machine, endpoint: ProxyEndpoint, variables: Iterable[str], places: Iterable[tuple[Path, str]]
) -> Iterator[str]:
    """Where the environment or a file sets a variable, to another value than the key for the proxy."""
    own = machine.environment.get(endpoint.key_variable)
    for name in variables:
        if machine.environment.get(name) not in ("", None, own):
            yield f"{name} in the environment"
    for path, name in places:
        try:
            text = read_text(path)
        except Unreadable:
            continue
        found = re.search(rf"""(?m)^(?![ \t]*#).*?\b{name}["']?[ \t]*[:=][ \t]*["']?([^\s"'#]+)""", text)
        if found is not None and found[1] != own:
            yield f"{name} in {path}"


def _opencode(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.config_home / "opencode"
    names = [place / "opencode.json", place / "opencode.jsonc"]
    path = Path(machine.environment.get("OPENCODE_CONFIG") or next(filter(Path.exists, names), names[0]))
    # opencode would add it by itself, and lay the file out anew.
    schema: JsonValues = {("$schema",): "https://opencode.ai/config.json"}
    return [Target(path, JsonEdit(opencode_values(endpoint), schema, has_comments=True))]


def opencode_values(endpoint: ProxyEndpoint) -> JsonValues:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "DeepSeek",
        "options": {"baseURL": endpoint.base_url, "apiKey": f"{{env:{endpoint.key_variable}}}"},
        "models": {slug: _opencode_model(slug) for slug in endpoint.models},
    }
    return {
        ("model",): f"{PROVIDER}/{endpoint.model}",
        ("small_model",): f"{PROVIDER}/{FLASH}",
        ("provider", PROVIDER): provider,
    }


def _opencode_model(slug: str) -> dict[str, Any]:
    modalities = {"input": ["text", "image"] if can_see_images(slug) else ["text"], "output": ["text"]}
    return {
        "name": DISPLAY_NAMES[slug],
        "reasoning": True,
        "tool_call": True,
        "attachment": can_see_images(slug),
        "modalities": modalities,
        "limit": {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS},
        "cost": _cost(slug),
    }


def _cost(slug: str) -> dict[str, float]:
    """Dollars for a million tokens at peak hours: opencode has one price, and a bill below it is no bad surprise."""
    step = find_step(slug, USD, datetime.now(UTC))
    return {} if step is None else {"input": step.peak.miss, "output": step.peak.output, "cache_read": step.peak.hit}


def _vscode(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    names = [machine.app_data / "Code", machine.app_data / "Code - Insiders"]
    place = next(filter(Path.exists, names), names[0]) / "User"
    models = [
        {
            "id": slug,
            "name": DISPLAY_NAMES[slug],
            # Without a path, so that apiType alone chooses among the three APIs.
            "url": endpoint.base_url,
            "toolCalling": True,
            "vision": can_see_images(slug),
            "maxInputTokens": CONTEXT_TOKENS - OUTPUT_TOKENS,
            "maxOutputTokens": OUTPUT_TOKENS,
            "thinking": True,
            # VS Code 1.139 begins with the first.
            "supportsReasoningEffort": ["high", "low", "max"],
        }
        for slug in endpoint.models
    ]
    group: dict[str, Any] = {
        "name": PROVIDER,
        "vendor": _VSCODE_VENDOR,
        "apiKey": f"${{input:chat.lm.secret.{PROVIDER}}}",
        "apiType": "chat-completions",
        "models": models,
    }
    path = place / "chatLanguageModels.json"
    with contextlib.suppress(Unreadable):
        # A second setup keeps the name of the key that VS Code has, and what was chosen there.
        found = JsonDocument(read_text(path) or "[]", has_comments=True, is_list=True).find((PROVIDER,))[1]
        if found is not None and found.value.get("vendor") == _VSCODE_VENDOR:
            group |= {name: value for name, value in found.value.items() if name in _VSCODE_VOLATILE}
    edit = JsonEdit({(PROVIDER,): group}, has_comments=True, is_list=True, volatile=_VSCODE_VOLATILE)
    # Titles, commit messages and the like, which otherwise need an account of GitHub.
    utility: JsonValues = {(f"chat.utility{size}Model",): f"{_VSCODE_VENDOR}/{FLASH}" for size in ("", "Small")}
    return [Target(path, edit), Target(place / "settings.json", JsonEdit(utility, has_comments=True))]


_VSCODE_VENDOR = "customendpoint"
# VS Code 1.139 sets the first when it gets the key and the last when a thinking effort is chosen; the user the other.
_VSCODE_VOLATILE = ("apiKey", "apiType", "settings")


def _vscode_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    yield f"Restart VS Code. Then give it {endpoint.key_word} once, which it keeps in the keychain: press F1,"
    yield "Chat: Manage Language Models, right-click a DeepSeek model, Update API Key."
    yield 'The models are asked by chat completions; "apiType" in that file may be "responses" or "messages" as well.'


def _qwen_code(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    auth = {"selectedType": "openai", "baseUrl": endpoint.base_url, "apiKey": f"${endpoint.key_variable}"}
    values: JsonValues = {("security", "auth", name): value for name, value in auth.items()}
    values[("model", "name")] = endpoint.model
    return [Target(machine.home / ".qwen" / "settings.json", JsonEdit(values, has_comments=True))]


def _qwen_code_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    for found in other_values(machine, endpoint, ["OPENAI_API_KEY"], []):
        yield f"Warning: Qwen Code sends {found}, not the key in its file. Unset it, or set it to {endpoint.key_word}."


def _continue(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.folder("CONTINUE_GLOBAL_DIR", machine.home / ".continue")
    items: list[YamlValues] = [
        {
            "name": DISPLAY_NAMES[slug],
            "provider": "openai",
            "model": slug,
            "apiBase": endpoint.base_url,
            "apiKey": f"${{{{ secrets.{endpoint.key_variable} }}}}",
            "roles": ["chat", "edit", "apply"],
            "capabilities": ["tool_use", "image_input"] if can_see_images(slug) else ["tool_use"],
            "defaultCompletionOptions": {"contextLength": CONTEXT_TOKENS, "maxTokens": 65536},
        }
        for slug in endpoint.models
    ]
    head = {"name": "DeepSeek", "version": "1.0.0", "schema": "v1"}
    return [Target(place / "config.yaml", YamlItems("continue", "models", items, head))]


def _continue_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    place = machine.folder("CONTINUE_GLOBAL_DIR", machine.home / ".continue")
    yield f"The extension reads the key from {place / '.env'}: {endpoint.key_variable}={HIDDEN_KEY}"


def _cline(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.folder("CLINE_DIR", machine.home / ".cline")
    kind = "openai-compatible"
    settings = {"provider": kind, "apiKey": endpoint.key or HIDDEN_KEY}
    settings |= {"model": endpoint.model, "baseUrl": endpoint.base_url}
    provider = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    values: JsonValues = {("lastUsedProvider",): kind, ("providers", kind): provider}
    defaults: JsonValues = {("version",): 1, ("modes",): {}}
    return [Target(place / "data" / "settings" / "providers.json", JsonEdit(values, defaults))]


def _cline_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    yield "This is Cline's command line. In its extension choose the provider OpenAI Compatible, with the base URL"
    yield f"{endpoint.base_url}, {endpoint.key_word} and the model {endpoint.model}."


def _aider(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    models: JsonValues = {(name,): model for name, model in aider_models(endpoint).items()}
    return [
        Target(machine.home / ".aider.conf.yml", YamlKeys("aider", aider_keys(endpoint))),
        Target(machine.home / AIDER_METADATA, JsonEdit(models)),
    ]


def aider_keys(endpoint: ProxyEndpoint) -> dict[str, str]:
    return {
        "model": f"openai/{endpoint.model}",
        "weak-model": f"openai/{FLASH}",
        "edit-format": "diff",
        "openai-api-base": endpoint.base_url,
    }


def aider_models(endpoint: ProxyEndpoint) -> dict[str, dict[str, Any]]:
    return {f"openai/{slug}": _aider_model(slug) for slug in endpoint.models}


def _aider_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    # The second variable and both files win over the first one.
    variables = ["OPENAI_API_KEY", "AIDER_OPENAI_API_KEY"]
    places = [(machine.home / ".aider.conf.yml", "openai-api-key"), (machine.home / ".env", "OPENAI_API_KEY")]
    for found in other_values(machine, endpoint, variables, places):
        yield f"Warning: aider sends {found} to the proxy. Unset it, or set it to {endpoint.key_word}."


def _aider_model(slug: str) -> dict[str, Any]:
    cost = _cost(slug)
    prices = {"input_cost_per_token": "input", "output_cost_per_token": "output"}
    return {
        "max_tokens": OUTPUT_TOKENS,
        "max_input_tokens": CONTEXT_TOKENS,
        "max_output_tokens": OUTPUT_TOKENS,
        **{name: round(cost[kind] / 1_000_000, 12) for name, kind in prices.items() if cost},
        "litellm_provider": "openai",
        "mode": "chat",
    }


def _pi(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.folder("PI_CODING_AGENT_DIR", machine.home / ".pi" / "agent")
    return [Target(place / "models.json", JsonEdit({("providers", PROVIDER): pi_provider(endpoint)}))]


def pi_provider(endpoint: ProxyEndpoint) -> dict[str, Any]:
    return {
        "baseUrl": endpoint.base_url,
        "api": "openai-completions",
        # pi takes the name of a variable for its value.
        "apiKey": endpoint.key_variable,
        "models": [_pi_model(slug) for slug in endpoint.models],
    }


def _pi_model(slug: str) -> dict[str, Any]:
    cost = _cost(slug)
    return {
        "id": slug,
        "name": DISPLAY_NAMES[slug],
        "reasoning": True,
        "input": ["text", "image"] if can_see_images(slug) else ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": cost.pop("cache_read", 0), "cacheWrite": 0, **cost},
        "contextWindow": CONTEXT_TOKENS,
        "maxTokens": OUTPUT_TOKENS,
        "compat": {"thinkingFormat": "deepseek"},
        "thinkingLevelMap": {"minimal": None, "medium": None, "xhigh": "max"},
    }


def _pi_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    yield f"Then: pi --provider {PROVIDER} --model {endpoint.model}"


def _zed(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.app_data / "Zed" if machine.system == "win32" else machine.config_home / "zed"
    models = [
        {
            "name": slug,
            "display_name": DISPLAY_NAMES[slug],
            "max_tokens": CONTEXT_TOKENS,
            "max_output_tokens": OUTPUT_TOKENS,
            "capabilities": {"tools": True, "images": can_see_images(slug), "parallel_tool_calls": True},
        }
        for slug in endpoint.models
    ]
    values: JsonValues = {
        ("language_models", "openai_compatible", PROVIDER): {"api_url": endpoint.base_url, "available_models": models},
        ("agent", "default_model"): {"provider": PROVIDER, "model": endpoint.model},
    }
    return [Target(place / "settings.json", JsonEdit(values, has_comments=True))]


def _zed_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    yield f"Or enter the key in Zed: `agent: open settings`, LLM Providers, {PROVIDER}; it goes into the keychain."


def _llm(machine: Machine, endpoint: ProxyEndpoint) -> list[Target]:
    place = machine.folder("LLM_USER_PATH", machine.app_data / "io.datasette.llm")
    items: list[YamlValues] = [
        {
            "model_id": slug,
            "model_name": slug,
            "api_base": endpoint.base_url,
            "api_key_name": PROVIDER,
            "supports_tools": True,
        }
        for slug in endpoint.models
    ]
    return [Target(place / "extra-openai-models.yaml", YamlItems("llm", None, items, {}))]


def _llm_notes(machine: Machine, endpoint: ProxyEndpoint) -> Iterable[str]:
    yield f"Give llm {endpoint.key_word} once: llm keys set {PROVIDER}"
    yield f"Then: llm -m {endpoint.model} Hello      (llm models default {endpoint.model} makes it the default)"


CLIENTS = {
    client.name: client
    for client in (
        Client("codex", "Codex", "codex", _codex),
        Client("claude-code", "Claude Code", "claude", _claude_code, "ANTHROPIC_AUTH_TOKEN", notes=_claude_code_notes),
        Client("opencode", "opencode", "opencode", _opencode),
        Client("vscode", "VS Code", "code", _vscode, key_variable="", notes=_vscode_notes),
        Client("qwen-code", "Qwen Code", "qwen", _qwen_code, notes=_qwen_code_notes),
        Client("continue", "Continue", "cn", _continue, rival="config.json", notes=_continue_notes),
        Client("cline", "Cline", "cline", _cline, needs_key=True, notes=_cline_notes),
        Client("aider", "aider", "aider", _aider, "OPENAI_API_KEY", notes=_aider_notes),
        Client("pi", "pi", "pi", _pi, notes=_pi_notes),
        Client("zed", "Zed", "zed", _zed, ACCESS_KEY_VARIABLE, notes=_zed_notes),
        Client("llm", "llm", "llm", _llm, key_variable="", notes=_llm_notes),
    )
}


# Which of them are installed, and whether they use the proxy …


class Status(NamedTuple):
    """Whether a client is installed and uses the proxy. `points_here` is None if its file cannot be read (`fault`)."""

    is_installed: bool
    has_file: bool
    points_here: bool | None
    fault: str = ""


def status(client: Client, machine: Machine, endpoint: ProxyEndpoint) -> Status:
    path = client.targets(machine, endpoint)[0].path
    is_installed, has_file = machine.has_program(client.program), path.exists()
    try:
        text = read_text(path)
    except Unreadable as reason:
        return Status(is_installed, has_file, None, str(reason))
    return Status(is_installed, has_file, _names(text, endpoint.root))


def missing_variable(client: Client, machine: Machine, endpoint: ProxyEndpoint) -> str:
    """The variable in which a client looks for its key, if neither this shell nor the client's file sets it."""
    if client.needs_key:
        return ""
    variable = endpoint.key_variable if client.key_variable is None else client.key_variable
    with contextlib.suppress(Unreadable):
        # Claude Code has variables in its file.
        if client.key_variable and client.key_variable in read_text(client.targets(machine, endpoint)[0].path):
            return ""
    return "" if machine.environment.get(variable) else variable


def _names(text: str, root: str) -> bool:
    """Whether a text has an address outside of comments, under either name of this machine."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "//")))
    roots = {root, root.replace("//127.0.0.1:", "//localhost:"), root.replace("//localhost:", "//127.0.0.1:")}
    return any(re.search(rf"{re.escape(address)}(?![\w.:-])", lines) for address in roots)
