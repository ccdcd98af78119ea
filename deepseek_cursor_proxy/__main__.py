"""python -m deepseek_cursor_proxy, the installed command, and the archive that .ci/build_pyz.py makes.

This file and the package's __init__ parse with Python 2.7: a Python that is too old prints one line and exits with
code 2, after which service managers do not restart it for ever.
"""

import gc
import signal
import sys

OLDEST = (3, 11)


def main():  # type: () -> int
    """Import the command line and run it; during the import Ctrl-C ends the process without a traceback."""
    if sys.version_info < OLDEST:
        return _refuse()
    interrupted = signal.getsignal(signal.SIGINT)
    # A background process ignores SIGINT, and continues to.
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # An import makes no garbage, and looking for some took 2 ms of every start. What it made stays: leaving that out of
    # all later collections saves 2 ms more.
    gc.disable()
    from deepseek_cursor_proxy import cli

    # PyPy's has no such function.
    if hasattr(gc, "freeze"):
        gc.freeze()
    gc.enable()
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    return cli.main()


def _refuse():  # type: () -> int
    needed = ".".join(map(str, OLDEST))
    started = "-m deepseek_cursor_proxy"
    if sys.argv[0].endswith(".pyz"):
        started = sys.argv[0]
    found = ".".join(map(str, sys.version_info[:3]))
    why = "deepseek-cursor-proxy: needs Python " + needed + " or newer, and " + sys.executable + " is Python " + found
    if sys.stderr is not None:
        sys.stderr.write(why + "; start it with a newer one, such as `python" + needed + " " + started + "`\n")
    return 2


if __name__ == "__main__":
    if __package__ == "":
        # `python PATH/deepseek_cursor_proxy`, from any folder: Python looks in the package, not beside it.
        sys.path[0] = sys.path[0] + "/.."
    sys.exit(main())
