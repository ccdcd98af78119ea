"""The command `python -m tests.soak MINUTES`."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from tests import soak


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.soak", description="Mixed load, then see what leaked.")
    parser.add_argument("minutes", type=_minutes, metavar="MINUTES", help="how long, such as 10 or 0.5")
    parser.add_argument("--quick", action="store_true", help="fewer clients at once")
    options = parser.parse_args(arguments)
    return soak.run(options.minutes, quick=options.quick)


def _minutes(text: str) -> float:
    """A number of minutes up to a week; more is a typing error."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 7 * 24 * 60:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes, such as 10 or 0.5")


if __name__ == "__main__":
    sys.exit(main())
