"""Steps without a Lull, for what a test has at once."""

from collections.abc import Callable

from deepseek_cursor_proxy.http1.lull import Result, Steps


def at_once(value: Result) -> Steps[Result]:
    yield from ()
    return value


def reader_of(body: bytes) -> Callable[[], Steps[bytes]]:
    """The `read_body` of a request whose body has arrived."""
    return lambda: at_once(body)
