"""Failures in Anthropic's API: status, error object, whether clients should try again."""

import re
from typing import Any

from deepseek_cursor_proxy.api.routes import speaks_messages
from deepseek_cursor_proxy.errors import ModelNotAllowed, PriceUnknown, ProxyError
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, HttpRequest

# With this code the official packages send the whole chat themselves.
THREADS = "thread_unsupported_request"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_OVERFLOW = "context_length_exceeded"
_NUMBERS = re.compile(r"maximum context length is (\d+) tokens(?:.*?resulted in (\d+) tokens)?", re.DOTALL)

# Statuses that another try cannot change. Claude Code would try for minutes, and the SDKs even repeat a 409.
_FINAL = frozenset({400, 401, 402, 403, 404, 409, 413, 415, 422})


def refuse(request: HttpRequest, error: ProxyError, request_id: str, headers: Headers) -> HttpReply | None:
    """The reply to a failed request that is meant for this API, even at an unknown path; None for any other."""
    if not speaks_messages(request):
        return None
    if error.status in _FINAL or error.code == "reasoning_refused":
        headers = (("x-should-retry", "false"), *headers)
    return HttpReply.json(failure(error, request_id), status(error), (("request-id", request_id), *headers))


def status(error: ProxyError) -> int:
    if error.status == 503 or error.code == "insufficient_system_resource":
        return 529
    if isinstance(error, (ModelNotAllowed, PriceUnknown)):
        # As Anthropic answers for such a model. Claude Code calls a 403 "Failed to authenticate", and the key is fine.
        return 400
    return error.status if error.status < 500 else 500


def failure(error: ProxyError, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(status(error), "api_error" if error.status >= 500 else "invalid_request_error")
    payload = error.payload()["error"]
    details = {"details": {"error_code": THREADS}} if error.code == THREADS else {}
    message = payload.get("message") or error.message
    if payload.get("code") == _OVERFLOW:
        # Clients shorten the chat when they read these words.
        numbers = _NUMBERS.search(message)
        limit = int(numbers[1]) if numbers else 0
        tokens = int(numbers[2]) if numbers and numbers[2] else limit + 1
        kind, message = "invalid_request_error", f"prompt is too long: {tokens} tokens > {limit} maximum"
    return {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": request_id}
