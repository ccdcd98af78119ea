"""The command `python -m tests.bench`."""

import argparse
import signal
import sys
from collections.abc import Sequence

from tests import bench
from tests.bench.proxies import ProxyCommand
from tests.bench.table import DIRECT, OURS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser("python -m tests.bench", description="Measure the proxy from outside.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parse_others(parser, arguments)
    # It ends what was started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return bench.run(options.quick, options.command)


def parse_others(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed flags, with `command` for other proxies."""
    parser.add_argument(
        "--command",
        type=named_command,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="start another proxy and measure it, too; in its command {port} and {upstream} stand for its port and "
        "for DeepSeek's address",
    )
    options = parser.parse_args(arguments)
    names = [DIRECT, OURS, *(command.name for command in options.command)]
    if len(set(names)) < len(names):
        parser.error("two columns have the same name; give each of the other proxies one of its own")
    return options


def named_command(text: str) -> ProxyCommand:
    name, _, command = text.partition("=")
    if name.strip() and "{port}" in command:
        return ProxyCommand(name.strip(), command)
    raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND with {{port}} in the command")


if __name__ == "__main__":
    sys.exit(main())
