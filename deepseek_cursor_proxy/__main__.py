"""python -m deepseek_cursor_proxy, and the command that is installed.

This file and the package's __init__ are written so that Python 2.7 can read them: a Python that is too old is told so
in one line, with exit code 2, on which service managers do not start it again and again.
"""

import signal
import sys

OLDEST = (3, 11)


def main():  # type: () -> int
    """Load the command line and run it; until it is loaded, Ctrl-C ends the process without a word."""
    if sys.version_info < OLDEST:
        return _refuse()
    # Loading takes a moment, in which Ctrl-C would be answered with a traceback through whatever is being imported.
    interrupted = signal.getsignal(signal.SIGINT)
    # Whoever started us in the background, where it is ignored, is still obeyed.
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deepseek_cursor_proxy import cli

    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    return cli.main()


def _refuse():  # type: () -> int
    needed = ".".join(map(str, OLDEST))
    found = ".".join(map(str, sys.version_info[:3]))
    why = "deepseek-cursor-proxy: needs Python " + needed + " or newer, and " + sys.executable + " is Python " + found
    if sys.stderr is not None:
        sys.stderr.write(why + "; start it with a newer one, such as `python" + needed + " -m deepseek_cursor_proxy`\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
