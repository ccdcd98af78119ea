"""Whether a public URL leads to this proxy: it is asked for a random path, and only we know the answer.

The request goes out and comes back as a client's does, by the environment's proxy if there is one. A machine may be
unable to reach its own public address, so what it did not learn is no proof that others cannot.
"""

from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from deepseek_cursor_proxy.cli.tunnel.program import one_line

_ASK_SECONDS = 5.0
_MAX_ANSWER = 1000  # bytes; ours is shorter
# Without the second, ngrok may show a page of its own.
_HEADERS = {"User-Agent": "deepseek-cursor-proxy", "ngrok-skip-browser-warning": "1"}


class _NoRedirects(HTTPRedirectHandler):
    """Another page that sends us to our own address is not that address."""

    def redirect_request(self, *_: object) -> None:
        return None


class Reach(NamedTuple):
    """The result of a check: whether we answered, or something else did, and what is wrong."""

    is_ours: bool
    is_answered: bool
    problem: str = ""


OURS = Reach(is_ours=True, is_answered=True)


def ask(url: str, path: str, answer: str) -> Reach:
    """Ask for this path below the URL, where this proxy gives that answer. Takes seconds at most, but for DNS."""
    try:
        with build_opener(_NoRedirects).open(Request(url + path, headers=_HEADERS), timeout=_ASK_SECONDS) as reply:
            if reply.read(_MAX_ANSWER) == answer.encode():
                return OURS
            return Reach(is_ours=False, is_answered=True, problem="something else answers there")
    except HTTPError as refusal:
        refusal.close()
        return Reach(is_ours=False, is_answered=True, problem=f"something else answers there, with {refusal.code}")
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        return Reach(is_ours=False, is_answered=False, problem=f"no answer: {one_line(str(reason))}")
