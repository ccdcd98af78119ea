"""The commands: COMMANDS, each with its flags and the function that runs it; those of features are from `proxy.py`.

A command gets its options, and returns an exit code or None for success. One that is named by its module
("cli.store:print_stats") is imported when it is run.
"""

import argparse
from typing import Any

from deepseek_cursor_proxy import proxy
from deepseek_cursor_proxy.cli import serve
from deepseek_cursor_proxy.cli.parser import Command, add_config, add_settings, add_yes, config_path, load
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS
from deepseek_cursor_proxy.config.values import expand_home


def _config_show(options: dict[str, Any]) -> None:
    loaded = load(options)
    width = max(len(setting.key) for setting in SETTINGS)
    # What is set comes first.
    for setting in sorted(DECLARATIONS, key=lambda setting: loaded.origins[setting.field] == "default"):
        origin = loaded.origins[setting.field]
        print(f"{setting.key:<{width}} = {loaded.shown_value(setting):<30} # {origin}")


def _config_show_path(options: dict[str, Any]) -> None:
    print(expand_home(config_path(options)))


def _commands_of_features() -> tuple[Command, ...]:
    commands = [Command(**row) for row in proxy.COMMANDS]
    return tuple(each._replace(heading="" if at else "See requests and costs") for at, each in enumerate(commands))


# Flags …


def _add_clear(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear-reasoning-cache", action="store_true", help="do what `store clear` does, then start")


def _in(module: str) -> tuple[str, str]:
    """What a command in a module of its own runs, and its flags."""
    return f"cli.{module}:run", f"cli.{module}:add_flags"


_STORE = "cli.store:"
_CONFIG_COMMANDS = (
    Command("show", "the value of every setting, and where it comes from", _config_show, settings=add_settings),
    Command("path", "where the configuration file is", _config_show_path, settings=add_config),
)
_STORE_COMMANDS = (
    Command("secret", "the secret that all proxies of one engine need", _STORE + "print_secret"),
    Command("stats", "how much is stored", _STORE + "print_stats"),
    Command("clear", "delete reasoning, responses and cached answers", _STORE + "run_clear", add_yes),
)
COMMANDS = (
    Command("serve", "run the proxy (the default)", serve.run, _add_clear, add_settings, heading="Start and set up"),
    Command("run", "start an agent that uses the proxy", *_in("run_client")),
    Command("setup", "configure an agent to use the proxy", *_in("setup.command")),
    Command("service", "run the proxy in the background, always", commands="cli.service:COMMANDS"),
    Command("demo", "play a sample chat; needs no key", "cli.demo:run", settings=None),
    *_commands_of_features(),
    Command("doctor", "find problems and say how to fix them", *_in("doctor.command"), heading="Find and fix problems"),
    Command("config", "show settings and where they come from", commands=_CONFIG_COMMANDS),
    Command("access-key", "create a key for a client", *_in("access_key"), add_config, heading="Keys and stored data"),
    Command("store", "count or delete stored reasoning", commands=_STORE_COMMANDS),
)
