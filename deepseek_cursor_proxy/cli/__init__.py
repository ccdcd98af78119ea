"""The command line: each subcommand is a function that returns an exit code.

Exit codes: 0 done, also if there is nothing to show; 1 tried and failed, or the answer to a question was no; 2 cannot
be done as asked, say, because what was named does not exist (one line on stderr gives the reason and the remedy). A
command that looks at something creates no file.

    commands          the table of commands: flags, and what they run
    parser            the parser of that table; the settings as flags, and the configuration that follows
    serve, signals    the running proxy, the text at its start, its signals
    running_proxy     finds the proxies that run, and asks them
    store             opens the store; counts or deletes stored reasoning and responses
    access_key        creates a key for a client, or prints the digest of one
    questions         asks the user at the terminal
    run_client        the command `run`: runs a client that uses the proxy, with what each client gets
    setup             configures clients, or undoes that
    service           runs the proxy as a service of systemd or launchd
    doctor            finds problems and names the remedy
    tunnel            a public address, for serve
    demo              plays a chat that needs no key

Commands of a feature are in its folder.
Other folders import only `main`.
"""

import sys
from collections.abc import Sequence

from deepseek_cursor_proxy.cli.commands import COMMANDS
from deepseek_cursor_proxy.cli.parser import parse, run
from deepseek_cursor_proxy.cli.questions import Declined
from deepseek_cursor_proxy.cli.signals import redirect_to_null
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.redaction import safe_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    with standard_streams.command_streams():
        return _run(words)


def _run(words: list[str]) -> int:
    try:
        options = parse(words, COMMANDS)
        return _end(run(options))
    except StartupError as error:
        return _end(2, str(error))
    except Declined:
        print("Nothing was changed.")
        return _end(1)
    except KeyboardInterrupt:
        return _end(130)
    except SystemExit as end:
        # The parser has printed the help or the version.
        raise SystemExit(_end(int(end.code or 0))) from None
    except BrokenPipeError:
        # `… | head` has closed the pipe.
        return _end(0)
    except OSError as error:
        return _end(1, f"{error.filename or 'cannot read or write'}: {error.strerror or error}")


def _end(code: int, problem: str = "") -> int:
    """Write what is left of the output, and the problem; the exit code."""
    try:
        # Here, where an error can be reported, rather than at exit.
        sys.stdout.flush()
    except OSError as error:
        redirect_to_null([sys.stdout.fileno()])
        if not isinstance(error, BrokenPipeError):
            code, problem = 1, f"cannot write to standard output: {error.strerror}"
    if problem:
        print(f"deepseek-cursor-proxy: {safe_text(problem, 1000)}", file=sys.stderr)
    return code
