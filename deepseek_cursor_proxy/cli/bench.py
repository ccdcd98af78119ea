"""The command `bench`: its flags, and which of them go together. `lab/bench` and `lab/soak` do the work."""

import argparse
from typing import Any

from deepseek_cursor_proxy.cli.flags import flag_types
from deepseek_cursor_proxy.errors import StartupError


def add_flags(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--quick", action="store_true", help="fewer rounds, or fewer clients at once")
    bench.add_argument("--json", action="store_true", help="print JSON in place of the table")
    bench.add_argument(
        "--against",
        type=flag_types.named_url,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="measure another proxy as well, such as other=http://127.0.0.1:9001; again for one more",
    )
    bench.add_argument(
        "--upstream-port",
        type=flag_types.port,
        default=0,
        metavar="N",
        help="the port of the made-up DeepSeek (default: any free one); another proxy is started with "
        "http://127.0.0.1:N for DeepSeek's address before it is measured",
    )
    bench.add_argument(
        "--soak",
        type=flag_types.minutes,
        metavar="MINUTES",
        help="mixed load for that long, then see whether anything leaked",
    )


def run(options: dict[str, Any]) -> int:
    """Measure, or look for leaks; the exit code. StartupError for flags that do not go together."""
    from deepseek_cursor_proxy.lab import bench as benchmark
    from deepseek_cursor_proxy.lab import soak
    from deepseek_cursor_proxy.lab.bench.table import DIRECT, OURS

    others, port, as_json = dict(options["against"]), options["upstream_port"], options["json"]
    if options["soak"] is not None:
        if others or port or as_json:
            raise StartupError("--soak looks at this proxy alone and prints lines; of the other flags it takes --quick")
        return soak.run(options["soak"], quick=options["quick"])
    if len({DIRECT, OURS, *others}) < 2 + len(options["against"]):
        raise StartupError("two columns have the same name; give each proxy of --against one of its own")
    if others and not port:
        raise StartupError("--against needs --upstream-port N: the port at which the other proxy looks for DeepSeek")
    return benchmark.run(benchmark.Options(options["quick"], as_json, tuple(others.items()), port))
