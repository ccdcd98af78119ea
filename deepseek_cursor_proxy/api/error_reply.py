"""A ProxyError as an HTTP reply, in the error shape of OpenAI's APIs or of Anthropic's."""

import os

from deepseek_cursor_proxy.errors import MethodNotAllowed, ProxyError, Unauthorized
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply
from deepseek_cursor_proxy.protocols.anthropic import errors as anthropic


def openai_error(error: ProxyError) -> HttpReply:
    headers: Headers = (("x-request-id", new_request_id()), *_headers(error))
    if isinstance(error, Unauthorized):
        headers += (("WWW-Authenticate", "Bearer"),)
    return HttpReply.json(error.payload(), error.status, headers)


def anthropic_error(error: ProxyError) -> HttpReply:
    request_id = new_request_id()
    headers: Headers = (("request-id", request_id),)
    if anthropic.is_final(error):
        headers += (("x-should-retry", "false"),)
    body, status = anthropic.failure(error, request_id), anthropic.status(error)
    return HttpReply.json(body, status, (*headers, *_headers(error)))


def _headers(error: ProxyError) -> Headers:
    if isinstance(error, MethodNotAllowed):
        return (("Allow", error.allow),)
    return (("Retry-After", str(error.retry_after)),) if error.retry_after is not None else ()


def new_request_id() -> str:
    """An id of a request, as clients quote it when they report a problem."""
    return f"req_{os.urandom(12).hex()}"
