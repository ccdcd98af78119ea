"""The commands: COMMANDS, each with its flags and the function that runs it.

A command takes the options that its flags left, and returns an exit code or None for success. What only one command
needs is imported with it.
"""

import argparse
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.cli import serve, store
from deepseek_cursor_proxy.cli.flags import flag_types
from deepseek_cursor_proxy.cli.flags.parser import Command, add_commands, program_name
from deepseek_cursor_proxy.cli.flags.settings_flags import add_config, add_settings, config_path, load, load_alone
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS, LoadedConfig
from deepseek_cursor_proxy.config.values import expand_home


def _serve(options: dict[str, Any]) -> int:
    clear_store = options.pop("clear_reasoning_cache", False)
    if options.get("config") is None:
        serve.ensure_config_file()

    def load_usable() -> LoadedConfig:
        return serve.with_usable_store(load(options))

    return serve.run(load_usable(), config_path(options), clear_store=clear_store, reload_config=load_usable)


def _config_show(options: dict[str, Any]) -> None:
    loaded = load(options)
    width = max(len(each.key) for each in SETTINGS)
    for each in DECLARATIONS:
        print(f"{each.key:<{width}} = {loaded.shown_value(each):<42} # {loaded.origins[each.field]}")


def _config_show_path(options: dict[str, Any]) -> None:
    print(expand_home(config_path(options)))


def _store_stats(options: dict[str, Any]) -> None:
    store.print_stats(load(options).config)


def _store_clear(options: dict[str, Any]) -> None:
    with store.open_store(load(options).config) as opened:
        print(store.clear(opened))


def _dashboard(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import dashboard

    dashboard.open_dashboard(load(options).config)


def _setup(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli import setup_command as setup

    name, choice = setup.take_choice(options)
    return setup.run(load(options).config, config_path(options), name, choice)


def _doctor(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli import doctor_command as doctor

    return doctor.run(config_path(options), options)


def _explain(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.observers import explain_trace

    print(explain_trace.explain(expand_home(options["trace"])))


def _access_key(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import access_key

    if options["new"]:
        access_key.print_new()
    else:
        access_key.print_digest()


def _sessions_list(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import sessions

    sessions.list_sessions(load(options).config)


def _sessions_show(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import sessions

    session = options.pop("session")
    sessions.show_session(load(options).config, session)


def _sessions_export(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import sessions

    names = ("sessions", "format", "since", "min_turns", "only_complete", "output")
    chosen = {name: options.pop(name) for name in names}
    sessions.export_sessions(load(options).config, chosen)


def _usage(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import usage

    usage.print_usage(load_alone(options), options)


def _balance(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli import usage

    return usage.print_balance(load_alone(options))


def _demo(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli.demo import demo

    return demo.run(program_name())


# Flags …


def _add_clear(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clear-reasoning-cache", action="store_true", help="forget all stored reasoning and responses before starting"
    )


def _add_setup(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import setup_command as setup

    setup.add_flags(parser)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import doctor_command as doctor

    doctor.add_flags(parser)


def _add_usage(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import usage

    usage.add_usage_flags(parser)


def _add_service(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import service_command as service

    add_commands(parser, service.COMMANDS)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE.json", help="a file that --trace-dir left")


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--new", action="store_true", help="make one up")


def _add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="ID", help="the id of a session, or its beginning")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sessions", metavar="ID", nargs="*", help="sessions, by default all")
    parser.add_argument("--format", choices=("openai", "sharegpt", "hermes", "nodes"), default="openai")
    parser.add_argument(
        "--since", type=flag_types.moment, metavar="DATE", help="trajectories that ended on this day or later"
    )
    parser.add_argument("--min-turns", type=int, default=0, metavar="N", help="with at least so many answers")
    parser.add_argument("--only-complete", action="store_true", help="without those that were broken off")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: print)")


_CONFIG_COMMANDS = (
    Command("show", "effective values and where each comes from", _config_show, (add_settings,)),
    Command("path", "where the configuration file is", _config_show_path, (add_settings,)),
)
_STORE_COMMANDS = (
    Command("stats", "how much is stored", _store_stats, (add_settings,)),
    Command("clear", "delete all of it", _store_clear, (add_settings,)),
)
_SESSION_COMMANDS = (
    Command("list", "all sessions, newest first", _sessions_list, (add_settings,)),
    Command(
        "show", "the trajectories of one session, with their thinking", _sessions_show, (_add_session, add_settings)
    ),
    Command("export", "trajectories as lines of JSON, for training", _sessions_export, (_add_export, add_settings)),
)
COMMANDS = (
    Command("serve", "run the proxy (the default)", _serve, (add_settings, _add_clear)),
    Command(
        "setup",
        "point Codex, Claude Code or another client to the proxy, or list them",
        _setup,
        (add_settings, _add_setup),
    ),
    Command("service", "run the proxy as a service of this machine", add_flags=(_add_service,)),
    Command("doctor", "find out what is wrong, and what to do about it", _doctor, (add_settings, _add_doctor)),
    Command("dashboard", "open the dashboard of the running proxy in a browser", _dashboard, (add_settings,)),
    Command("demo", "try it without a key, against a DeepSeek made up here", _demo),
    Command("config", "look at the settings", commands=_CONFIG_COMMANDS),
    Command("usage", "print what was used and what it cost, an estimate", _usage, (add_config, _add_usage)),
    Command("balance", "ask DeepSeek what is left on the account", _balance, (add_config,)),
    Command("explain", "tell what a trace says about the reasoning of each turn", _explain, (_add_trace,)),
    Command("access-key", "print the digest of a key, or a new key, for access_keys", _access_key, (_add_new,)),
    Command("sessions", "look at recorded trajectories, or export them", commands=_SESSION_COMMANDS),
    Command("store", "look after the stored reasoning and responses", commands=_STORE_COMMANDS),
)
