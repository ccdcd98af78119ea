"""The command `python -m tests.bench`: its flags, and which of them go together."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from tests import bench
from tests.bench.others import OtherCommand
from tests.bench.table import DIRECT, OURS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser("python -m tests.bench", description="Measure the proxy from outside.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parse_others(parser, arguments)
    others, commands = tuple(options.against), tuple(options.command)
    return bench.run(bench.Options(options.quick, options.json, others, options.upstream_port, commands))


def parse_others(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed flags, with those for other proxies: `against`, `command` and `upstream_port`."""
    parser.add_argument(
        "--command",
        type=named_command,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="start another proxy and measure it, too; in its command {port} and {upstream} stand for its port and "
        "for DeepSeek's address",
    )
    parser.add_argument(
        "--against",
        type=named_url,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="measure a proxy that runs already, such as other=http://127.0.0.1:9001; again for one more",
    )
    parser.add_argument(
        "--upstream-port",
        type=port_number,
        default=0,
        metavar="N",
        help="the port of the made-up DeepSeek (default: any free one); a proxy of --against is started with "
        "http://127.0.0.1:N for DeepSeek's address before it is measured",
    )
    options = parser.parse_args(arguments)
    names = [DIRECT, OURS, *(name for name, _ in options.against), *(command.name for command in options.command)]
    if len(set(names)) < len(names):
        parser.error("two columns have the same name; give each of the other proxies one of its own")
    if options.against and not options.upstream_port:
        parser.error("--against needs --upstream-port N: the port at which the other proxy looks for DeepSeek")
    return options


def named_command(text: str) -> OtherCommand:
    name, _, command = text.partition("=")
    if name.strip() and "{port}" in command:
        return OtherCommand(name.strip(), command)
    raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND with {{port}} in the command")


def named_url(text: str) -> tuple[str, str]:
    """A column of the table and its base URL, which is plain http."""
    name, _, url = text.partition("=")
    with contextlib.suppress(ValueError):
        address = urlsplit(url)
        if name.strip() and address.scheme == "http" and address.hostname and address.port != 0:
            return name.strip(), url
    raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL, such as other=http://127.0.0.1:9001")


def port_number(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 < int(text) < 65536:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port: a whole number from 1 to 65535")


if __name__ == "__main__":
    sys.exit(main())
