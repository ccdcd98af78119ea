"""`explain`: where the reasoning in a trace came from."""

import argparse
from pathlib import Path
from typing import Any

from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.features.traces import trace


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE.json", help="a file in the --trace-dir folder")


def explain(options: dict[str, Any]) -> None:
    print(trace.explain(expand_home(options["trace"])))
