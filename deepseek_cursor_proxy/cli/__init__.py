"""The command line: each subcommand is a function that returns an exit code.

Exit codes: 0 done, 1 tried and failed, 2 cannot be done as asked (one line on stderr gives the reason and the remedy).

    serve, signals    the running proxy and its signals
    usage             what was used and what it cost; the balance of the account
    access_key        a new key for access_keys, or the digest of one
    setup             the configuration of clients: shown, changed and put back
    service           the proxy as a service of the system
    doctor            what is wrong with the set-up, and the remedy
    dashboard         the link to the dashboard, printed and opened
    bench             the benchmark and the soak
    sessions          recorded trajectories: listed, shown and exported
    flag_types        the values of flags that are no settings
    local_address     the host to print for a wildcard address

Other folders import only `main`.
"""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.cli import flag_types, serve
from deepseek_cursor_proxy.cli.signals import redirect_to_null
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.config.declaration import Setting, nearest, to_toml
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS, SETTINGS, LoadedConfig
from deepseek_cursor_proxy.config.settings import CONFIG_PATH
from deepseek_cursor_proxy.config.sources import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.redaction import safe_text

_DESCRIPTION = "Makes DeepSeek's thinking models work in Cursor: remembers their reasoning and puts it back."
_EPILOG = "Without a command the proxy is served. `serve --help` lists all settings."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    with standard_streams.command_streams():
        return _run(words)


def _run(words: list[str]) -> int:
    try:
        options = _parse(words)
        code = options.pop("command")(options) or 0
        # Here, where an error can be reported, rather than at exit.
        sys.stdout.flush()
        return int(code)
    except StartupError as error:
        print(f"deepseek-cursor-proxy: {safe_text(error, 1000)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `… | head` has closed the pipe.
        redirect_to_null([sys.stdout.fileno()])
        return 0


# Commands, which return an exit code or None for success …


def _serve(options: dict[str, Any]) -> int:
    clear_store = options.pop("clear_reasoning_cache", False)
    if options.get("config") is None:
        serve.ensure_config_file()

    def load() -> LoadedConfig:
        return serve.with_usable_store(_load(options))

    return serve.run(load(), _config_path(options), clear_store=clear_store, reload_config=load)


def _config_show(options: dict[str, Any]) -> None:
    loaded = _load(options)
    width = max(len(each.key) for each in SETTINGS)
    for each in DECLARATIONS:
        value = to_toml(getattr(loaded.config, each.field))
        print(f"{each.key:<{width}} = {value:<42} # {loaded.origins[each.field]}")


def _config_show_path(options: dict[str, Any]) -> None:
    print(expand_home(_config_path(options)))


def _store_stats(options: dict[str, Any]) -> None:
    from datetime import datetime

    from deepseek_cursor_proxy.prices.price_list import format_amount

    config = _load(options).config
    with serve.open_store(config) as store:
        stats, responses = store.stats(), serve.response_stats(store)
        cache = serve.cache_stats(store, config.currency)
    oldest = "-" if stats.oldest_use is None else datetime.fromtimestamp(stats.oldest_use).isoformat(" ", "minutes")
    print(f"store        {config.reasoning_content_path}")
    print(f"reasonings   {stats.reasonings:,} (of at most {config.reasoning_cache_max_rows:,})")
    print(f"keys         {stats.keys:,}")
    print(f"text         {stats.bytes:,} bytes")
    print(f"oldest use   {oldest}")
    print(f"responses    {responses.responses:,} (of at most {config.response_max_rows:,}), {responses.bytes:,} bytes")
    totals, saved = cache.totals, format_amount(cache.totals.money, config.currency)
    print(f"cache        {cache.entries:,} answers, {cache.bytes:,} bytes")
    print(f"cache use    {totals.hits:,} hits, {totals.misses:,} misses; {totals.tokens:,} tokens, {saved} saved")


def _store_clear(options: dict[str, Any]) -> None:
    with serve.open_store(_load(options).config) as store:
        print(serve.clear(store))


def _dashboard(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import dashboard

    dashboard.open_dashboard(_load(options).config)


def _setup(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli import setup

    name, choice = setup.take_choice(options)
    return setup.run(_load(options).config, _config_path(options), name, choice)


def _doctor(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli import doctor

    return doctor.run(_config_path(options), options)


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

    sessions.list_sessions(_load(options).config)


def _sessions_show(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import sessions

    session = options.pop("session")
    sessions.show_session(_load(options).config, session)


def _sessions_export(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import sessions

    names = ("sessions", "format", "since", "min_turns", "only_complete", "output")
    chosen = {name: options.pop(name) for name in names}
    sessions.export_sessions(_load(options).config, chosen)


def _usage(options: dict[str, Any]) -> None:
    from deepseek_cursor_proxy.cli import usage

    usage.print_usage(_load_alone(options), options)


def _balance(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli import usage

    return usage.print_balance(_load_alone(options))


def _demo(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.lab import demo

    return demo.run(_program())


def _bench(options: dict[str, Any]) -> int:
    from deepseek_cursor_proxy.cli import bench

    return bench.run(options)


def _parse(words: list[str]) -> dict[str, Any]:
    """The options of a command line; unknown words are refused by the subcommand's own parser."""
    found, unknown = _parser(words[0]).parse_known_args(words)
    options = vars(found)
    parser: _Parser = options.pop("parser")
    if unknown:
        parser.refuse_unknown(unknown)
    return options


class _Parser(argparse.ArgumentParser):
    """Accepts full flag names only, and raises StartupError with one line; also used for subcommands."""

    def __init__(self, **details: Any) -> None:
        # An abbreviation that works today is ambiguous with the next setting.
        super().__init__(allow_abbrev=False, **details)
        self.set_defaults(parser=self)

    def refuse_unknown(self, words: list[str]) -> NoReturn:
        names = {flag.lstrip("-"): flag for flag in self._option_string_actions}
        flags = (word.partition("=")[0].lstrip("-") for word in words if word.startswith("-"))
        near = nearest(next(flags, ""), names)
        hint = f"did you mean {names[near]}? " if near else ""
        if command := next((name for name, *_ in _COMMANDS if name in words), None):
            hint = f"a command comes before its flags, as in `{_program()} {command} …`; "
        self._refuse(f"unrecognized arguments: {' '.join(words)}", hint)

    def error(self, message: str) -> NoReturn:
        self._refuse(message)

    def _refuse(self, message: str, hint: str = "") -> NoReturn:
        # A key after a misspelt flag must not get into a log.
        message = re.sub(r"(sk-|sha256:)[^\s',]+", r"\1…", message)
        raise StartupError(f"{message}; {hint}`{self.prog} --help` lists what there is")


def _parser(command: str) -> _Parser:
    """The parser for a line that begins with this command, without the flags of others: adding all takes 10 ms."""
    parser = _Parser(prog=_program(), description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"deepseek-cursor-proxy {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, help, add_flags in _COMMANDS:
        subparser = commands.add_parser(name, help=help)
        if name == command:
            add_flags(subparser)
    return parser


def _program() -> str:
    """The command that started this program, for hints: in a checkout nothing is installed."""
    started = Path(*sys.argv[:1])
    if started.suffix == ".pyz":
        return f"python {started}"
    is_module = started.parts[-2:] == ("deepseek_cursor_proxy", "__main__.py")
    return "python -m deepseek_cursor_proxy" if is_module else "deepseek-cursor-proxy"


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    parser.add_argument(
        "--clear-reasoning-cache", action="store_true", help="forget all stored reasoning and responses before starting"
    )
    parser.set_defaults(command=_serve)


def _add_subcommands(commands: Sequence[tuple[str, str, Callable[..., None]]], parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(metavar="WHAT", required=True)
    for name, help, command in commands:
        _add_settings(subparser := what.add_parser(name, help=help))
        subparser.set_defaults(command=command)


def _add_dashboard(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    parser.set_defaults(command=_dashboard)


def _add_setup(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import setup

    _add_settings(parser)
    setup.add_flags(parser)
    parser.set_defaults(command=_setup)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import doctor

    _add_settings(parser)
    doctor.add_flags(parser)
    parser.set_defaults(command=_doctor)


def _add_sessions(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(metavar="WHAT", required=True)
    _add_settings(lists := what.add_parser("list", help="all sessions, newest first"))
    lists.set_defaults(command=_sessions_list)
    show = what.add_parser("show", help="the trajectories of one session, with their thinking")
    show.add_argument("session", metavar="ID", help="the id of a session, or its beginning")
    _add_settings(show)
    show.set_defaults(command=_sessions_show)
    export = what.add_parser("export", help="trajectories as lines of JSON, for training")
    export.add_argument("sessions", metavar="ID", nargs="*", help="sessions, by default all")
    export.add_argument("--format", choices=("openai", "sharegpt", "hermes", "nodes"), default="openai")
    export.add_argument(
        "--since", type=flag_types.moment, metavar="DATE", help="trajectories that ended on this day or later"
    )
    export.add_argument("--min-turns", type=int, default=0, metavar="N", help="with at least so many answers")
    export.add_argument("--only-complete", action="store_true", help="without those that were broken off")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: print)")
    _add_settings(export)
    export.set_defaults(command=_sessions_export)


def _add_service(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import service

    service.add_commands(parser, _add_settings, _load)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE.json", help="a file that --trace-dir left")
    parser.set_defaults(command=_explain)


def _add_access_key(access: argparse.ArgumentParser) -> None:
    access.add_argument("--new", action="store_true", help="make one up")
    access.set_defaults(command=_access_key)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import bench

    bench.add_flags(parser)
    parser.set_defaults(command=_bench)


def _add_usage(parser: argparse.ArgumentParser) -> None:
    from deepseek_cursor_proxy.cli import usage

    _add_config(parser)
    usage.add_usage_flags(parser)
    parser.set_defaults(command=_usage)


def _add_balance(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    parser.set_defaults(command=_balance)


def _add_config(parser: argparse.ArgumentParser) -> None:
    help = f"configuration file (default {CONFIG_PATH})"
    parser.add_argument("--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help=help)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add one flag per declared setting; `config` checks the values."""
    default = argparse.SUPPRESS
    _add_config(parser)
    # Without it argparse prints two screens of flags before their explanations.
    parser.usage = f"{parser.prog} [settings]"
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(each.group for each in SETTINGS)}
    for each in SETTINGS:
        group = groups[each.group]
        group.add_argument(each.flag, dest=each.key, default=default, **_flag_details(each))
        if each.switch:
            negated = each.flag.replace("--", "--no-", 1)
            help = f"the same as {each.flag} off"
            group.add_argument(negated, dest=each.key, default=default, action="store_const", const="off", help=help)


_CONFIG_COMMANDS = (
    ("show", "effective values and where each comes from", _config_show),
    ("path", "where the configuration file is", _config_show_path),
)
_STORE_COMMANDS = (("stats", "how much is stored", _store_stats), ("clear", "delete all of it", _store_clear))
_COMMANDS: tuple[tuple[str, str, Callable[[argparse.ArgumentParser], None]], ...] = (
    ("serve", "run the proxy (the default)", _add_serve),
    ("setup", "point Codex, Claude Code or another client to the proxy, or list them", _add_setup),
    ("service", "run the proxy as a service of this machine", _add_service),
    ("doctor", "find out what is wrong, and what to do about it", _add_doctor),
    ("dashboard", "open the dashboard of the running proxy in a browser", _add_dashboard),
    ("demo", "try it without a key, against a DeepSeek made up here", lambda demo: demo.set_defaults(command=_demo)),
    ("bench", "measure it against a DeepSeek made up here", _add_bench),
    ("config", "look at the settings", partial(_add_subcommands, _CONFIG_COMMANDS)),
    ("usage", "print what was used and what it cost, an estimate", _add_usage),
    ("balance", "ask DeepSeek what is left on the account", _add_balance),
    ("explain", "tell what a trace says about the reasoning of each turn", _add_explain),
    ("access-key", "print the digest of a key, or a new key, for access_keys", _add_access_key),
    ("sessions", "look at recorded trajectories, or export them", _add_sessions),
    ("store", "look after the stored reasoning and responses", partial(_add_subcommands, _STORE_COMMANDS)),
)


def _flag_details(each: Setting) -> dict[str, Any]:
    help = f"{each.help} (default {to_toml(each.default)})".replace("%", "%%")
    if each.kind is bool:
        return {"action": argparse.BooleanOptionalAction, "help": help}
    kind = {tuple: "LIST", AccessKey: "KEY"}.get(each.kind) or each.kind.__name__.upper()
    metavar = "{" + ",".join(each.choices) + "}" if each.choices else kind
    without_value = {"nargs": "?", "const": "on"} if each.switch else {}
    return {"metavar": metavar, "help": help, **without_value}


def _config_path(options: dict[str, Any]) -> Path:
    return options.get("config") or CONFIG_PATH


def _load_alone(options: dict[str, Any]) -> ProxyConfig:
    """The settings for a command that takes none of them as flags."""
    return _load({name: value for name, value in options.items() if name == "config"}).config


def _load(options: dict[str, Any]) -> LoadedConfig:
    path = _config_path(options)
    # Reading the file reports any other problem with it.
    with contextlib.suppress(OSError):
        if options.get("config") is not None and not expand_home(path).exists():
            raise StartupError(
                f"config: {safe_text(path)} does not exist; write it, or leave --config out for the default"
            )
    flags = {name: value for name, value in options.items() if name != "config"}
    loaded = LoadedConfig.load(path, os.environ, flags)
    if loaded.config.models or loaded.config.picture_model:
        # Imported late: most people have neither, and the start is faster without.
        from deepseek_cursor_proxy.deepseek import model_resolver

        model_resolver.refuse_unknown(loaded.config, loaded.origins["models"])
        model_resolver.refuse_blind(loaded.config, loaded.origins["picture_model"])
    return loaded
