"""The settings as flags of a command, and the configuration that follows from them.

A flag has no default of its own: what is absent comes from the environment, the file or the declaration, which also
check the values (`config`).
"""

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.config.declaration import Setting, to_toml
from deepseek_cursor_proxy.config.loaded_config import SETTINGS, LoadedConfig
from deepseek_cursor_proxy.config.settings import CONFIG_PATH
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.redaction import safe_text


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add one flag per declared setting; `config` checks the values."""
    default = argparse.SUPPRESS
    add_config(parser)
    # Without it argparse prints two screens of flags before their explanations.
    parser.usage = f"{parser.prog} [settings]"
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(setting.group for setting in SETTINGS)}
    for setting in SETTINGS:
        group = groups[setting.group]
        group.add_argument(setting.flag, dest=setting.key, default=default, **_flag_details(setting))
        if setting.switch:
            negated = setting.flag.replace("--", "--no-", 1)
            help = f"the same as {setting.flag} off"
            group.add_argument(negated, dest=setting.key, default=default, action="store_const", const="off", help=help)


def accept_settings(parser: argparse.ArgumentParser) -> None:
    """Take the settings as `serve` does without listing them in the help: they are not what the command is about."""
    add_settings(parser)
    for action in parser._actions:
        if action.dest not in ("help", "config"):
            action.help = argparse.SUPPRESS
    # Beyond argparse's own two, groups have settings only; an empty one would still print its title.
    parser._action_groups[2:] = []
    parser.usage = None
    parser.epilog = "The settings of the proxy are flags here, too: `help serve` lists them."


def add_config(parser: argparse.ArgumentParser) -> None:
    help = f"configuration file (default {CONFIG_PATH})"
    parser.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help=help)


def _flag_details(setting: Setting) -> dict[str, Any]:
    help = f"{setting.help} (default {to_toml(setting.default)})".replace("%", "%%")
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
            raise StartupError(
                f"config: {safe_text(path)} does not exist; create it, or leave --config out to use the default"
            )
    flags = {name: value for name, value in options.items() if name != "config"}
    loaded = LoadedConfig.load(path, os.environ, flags)
    if loaded.config.models or loaded.config.subagent_model:
        # Imported late: most people have none, and the start is faster without.
        from deepseek_cursor_proxy.deepseek import model_resolver

        model_resolver.refuse_unknown(loaded.config, loaded.origins["models"])
    return loaded


def load_alone(options: dict[str, Any]) -> ProxyConfig:
    """The settings for a command that takes none of them as flags."""
    return load({name: value for name, value in options.items() if name == "config"}).config
