"""Questions to the person at the terminal. Every command asks here, so none waits or fails where there is no person.

Input that is closed, at its end or no terminal is an empty answer, and an empty answer is a no.
"""

import sys

from deepseek_cursor_proxy.config.access_keys import why_not_plausible
from deepseek_cursor_proxy.errors import StartupError


class Declined(Exception):
    """The answer to a question before a change was no. Every command ends with exit code 1 then."""


# Ctrl-D; a terminal that is gone; bytes that are no text.
_NO_ANSWER = (EOFError, OSError, ValueError)


def can_ask() -> bool:
    """Whether standard input is a terminal at which a person can answer."""
    try:
        # None: closed (`<&-`), or Windows' pythonw.
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False
    # Of Windows' null device isatty() says that it is a terminal, and a read of a key from it never ends.
    return is_terminal and (sys.platform != "win32" or _is_console(sys.stdin.fileno()))


def _is_console(descriptor: int) -> bool:
    """Whether a descriptor is a console of Windows: only those have a mode."""
    if sys.platform != "win32":
        return True
    import ctypes
    import msvcrt

    handle, mode = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor)), ctypes.c_uint32()
    return bool(ctypes.windll.kernel32.GetConsoleMode(handle, ctypes.byref(mode)))


def is_agreed(question: str) -> bool:
    """Ask a question that is answered with yes or no; anything but yes is a no."""
    if not can_ask():
        return False
    print(f"{question} [y/N] ", end="", flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except _NO_ANSWER:
        # Ctrl-D leaves the cursor behind the question.
        print()
        return False


def confirm(command: str, question: str) -> None:
    """Ask before a change; raise Declined without a yes, StartupError without a person to ask."""
    require_terminal(command)
    if not is_agreed(question):
        raise Declined


def require_terminal(command: str) -> None:
    """Raise StartupError if no person can answer."""
    if not can_ask():
        raise StartupError(f"{command} asks before it changes anything, and this is not a terminal: add --yes")


def ask_secret(prompt: str) -> str:
    """Ask for a secret, typed without echo; empty if none is typed."""
    if not can_ask():
        return ""
    from getpass import getpass

    try:
        return getpass(prompt).strip()
    except _NO_ANSWER:
        return ""


def ask_key(prompt: str) -> str:
    """Ask for an API key; empty if none is typed, StartupError for what cannot be one."""
    key = ask_secret(prompt)
    if key and (problem := why_not_plausible(key)):
        raise StartupError(problem)
    return key


def read_secret(prompt: str) -> str:
    """A secret that is typed without echo or piped in; empty if none is."""
    if sys.stdin is None or can_ask():
        return ask_secret(prompt)
    try:
        return sys.stdin.readline().strip()
    except _NO_ANSWER:
        return ""
