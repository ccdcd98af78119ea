"""python -m deepseek_cursor_proxy, and the command that is installed.

Loading takes a moment, in which Ctrl-C would be answered with a traceback through whatever is being imported.
"""

import signal
import sys


def main() -> int:
    """Load the command line and run it; until it is loaded, Ctrl-C ends the process without a word."""
    interrupted = signal.getsignal(signal.SIGINT)
    # Whoever started us in the background, where it is ignored, is still obeyed.
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deepseek_cursor_proxy import cli

    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
