"""The errors of the proxy, each with a status, a code and a message that says what to do.

    ProxyError                  a reply to the client
    ├── BadRequest       400    the body or a field is wrong; `param` names it
    ├── Unauthorized     401    no usable key
    │   └── WrongKey            no key, or one that is not served
    ├── Forbidden        403    a key of the owner would be spent under a host name that is not the proxy's
    │   ├── ModelNotAllowed     the caller's key is not for this model
    │   └── PriceUnknown        the caller has a budget, and what the model costs is not known
    ├── NotFound         404
    ├── MethodNotAllowed 405    `allow` lists the methods that work
    ├── RequestTimeout   408    the client sent its request too slowly
    ├── MissingReasoning 409    strategy "reject", and some turns cannot be filled
    ├── TooLarge         413
    ├── UnknownEncoding  415
    ├── UpgradeRefused   426    a WebSocket was asked for where there is none
    ├── TooManyAttempts  429    too many wrong keys from one address
    ├── QueueFull        429    the limit of running and waiting calls, or background responses, is reached
    ├── OverLimit        429    a limit of the caller's key or group is reached; `retry_after` says for how long
    │   └── OverBudget          a budget is: another try does not help before it is reset or raised
    ├── ProtocolError    4xx/5xx  the bytes are not the HTTP we accept; the connection ends
    ├── InternalError    500    a bug of ours
    ├── Overloaded       503    a limit of this proxy is reached
    ├── ProxyStopping    503    the proxy stops before the answer ends
    ├── UpstreamFailed   502    DeepSeek's response is unintelligible, or DeepSeek cannot be reached as configured
    │   └── UpstreamDropped     the connection broke: another try may succeed
    ├── UpstreamTimeout  504    DeepSeek was silent for too long
    │   └── ConnectionTimeout   there was not even a connection
    └── UpstreamRefused  its status   DeepSeek answered with an error of its own
    ClientGone                  the client closed its connection
    StartupError                the process cannot start; one line, exit code 2

Only upstream, storage and server catch exceptions of the libraries, and raise these.
"""

from collections.abc import Mapping
from typing import Any


class ProxyError(Exception):
    """A failure with all that a protocol needs to report it to the client."""

    status = 500
    type = "server_error"
    code = "internal_error"
    # Once a stream has begun every failure is reported as upstream's, with its code, except ProxyStopping.
    type_in_stream = "upstream_error"

    def __init_subclass__(cls, **fields: Any) -> None:
        """A child names its fields beside its parent: status, type, code, type_in_stream."""
        for name, value in fields.items():
            setattr(cls, name, value)

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.details = dict(details or {})
        self.retry_after = retry_after

    def hide(self, secret: str) -> None:
        """Remove a secret from the message: upstream may quote the key it was called with."""
        self.message = self.message.replace(secret, "***")

    def add(self, sentence: str) -> None:
        message = self.message.strip()
        end = "" if not message or message[-1] in ".!?。" else "."
        self.message = f"{message}{end} {sentence}".strip()

    def payload(self) -> dict[str, Any]:
        """The failure in OpenAI's error shape."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.details}}


class BadRequest(ProxyError, status=400, type="invalid_request_error", code="invalid_request_error"):
    """The body or a field is wrong; `param` names it."""


class Unauthorized(ProxyError, status=401, type="authentication_error", code="invalid_api_key"):
    """The key cannot be used."""


class Forbidden(ProxyError, status=403, type="permission_error", code="foreign_host"):
    """A key of the owner would be spent under a host name that is not the proxy's."""


class ModelNotAllowed(Forbidden, code="model_not_allowed"):
    """The caller's key is not for this model."""


class PriceUnknown(Forbidden, code="price_unknown"):
    """The caller has a budget, and what the model costs is not known."""


class WrongKey(Unauthorized):
    """The client has to send another key; `api/clients` adds where each client keeps its key."""


class NotFound(ProxyError, status=404, type="invalid_request_error", code="not_found"):
    """Nothing here has this path, model, session or response."""


class MethodNotAllowed(ProxyError, status=405, type="invalid_request_error", code="method_not_allowed"):
    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class RequestTimeout(ProxyError, status=408, type="request_timeout", code="request_timeout"):
    """The client sent its request too slowly."""


class MissingReasoning(ProxyError, status=409, type="invalid_request_error", code="missing_reasoning_content"):
    """Strategy "reject", and some turns cannot be filled."""


class TooLarge(ProxyError, status=413, type="invalid_request_error", code="request_too_large"):
    """A body or a history is larger than the limit."""


class UnknownEncoding(ProxyError, status=415, type="invalid_request_error", code="unsupported_content_encoding"):
    """The compression of the body is not supported."""


class UpgradeRefused(ProxyError, status=426, type="invalid_request_error", code="upgrade_refused"):
    """A WebSocket was requested where there is none."""


class TooManyAttempts(ProxyError, status=429, type="rate_limit_error", code="rate_limit_exceeded"):
    """One address sent too many wrong keys."""


class QueueFull(ProxyError, status=429, type="rate_limit_error", code="rate_limit_exceeded"):
    """The limit of running and waiting calls, or background responses, is reached."""


class OverLimit(ProxyError, status=429, type="rate_limit_error", code="rate_limit_exceeded"):
    """A limit of the caller's key or group is reached."""


class OverBudget(OverLimit, type="insufficient_quota", code="insufficient_quota"):
    """A budget of the caller's key or group is used up."""


class ProtocolError(ProxyError, type="invalid_request_error", code="invalid_http"):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class InternalError(ProxyError, type_in_stream="server_error"):
    def __init__(self) -> None:
        super().__init__("The proxy failed on this request; please report it.")


class Overloaded(ProxyError, status=503, type="overloaded", code="overloaded"):
    """A limit of this proxy is reached."""


class ProxyStopping(ProxyError, status=503, code="proxy_stopping", type_in_stream="server_error"):
    def __init__(self) -> None:
        # A restart takes seconds; OpenAI's libraries retry after the seconds named here.
        super().__init__("The proxy is being stopped or restarted. Ask again when it runs.", retry_after=5)


class UpstreamFailed(ProxyError, status=502, type="upstream_error", code="upstream_error"):
    """DeepSeek's response is unintelligible, or DeepSeek cannot be reached as configured."""


class UpstreamDropped(UpstreamFailed):
    """The connection to DeepSeek was refused, reset or cut off."""


class UpstreamTimeout(ProxyError, status=504, type="upstream_timeout", code="upstream_timeout"):
    """DeepSeek was silent for too long."""


class ConnectionTimeout(UpstreamTimeout):
    """DeepSeek cannot be reached in time, whatever the request."""


class UpstreamRefused(ProxyError, type="upstream_error", code="upstream_error"):
    """DeepSeek's own error: its status and, if it is JSON in the error shape, its body reach the client."""

    def __init__(self, status: int, message: str, body: Mapping[str, Any] | None, retry_after: int | None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.status = status
        self.body = body

    def hide(self, secret: str) -> None:
        super().hide(secret)
        self.body = _without(self.body, secret)

    def add(self, sentence: str) -> None:
        super().add(sentence)
        if self.body is not None:
            error = self.body.get("error")
            explained = {**error, "message": self.message} if isinstance(error, Mapping) else self.message
            self.body = {**self.body, "error": explained}

    def payload(self) -> dict[str, Any]:
        """DeepSeek's fields where they fit the error shape, ours elsewhere: clients rely on the shape."""
        ours = super().payload()["error"]
        error = self.body.get("error") if self.body is not None else None
        theirs = dict(error) if isinstance(error, Mapping) else {}
        for name in ("message", "type"):
            if not (isinstance(theirs.get(name), str) and theirs[name]):
                theirs.pop(name, None)
        return {**(self.body or {}), "error": {**ours, **theirs}}


def _without(value: Any, secret: str) -> Any:
    """The same JSON with the secret removed from every string and key."""
    if isinstance(value, str):
        return value.replace(secret, "***")
    if isinstance(value, Mapping):
        return {name.replace(secret, "***"): _without(inner, secret) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without(inner, secret) for inner in value]
    return value


class ClientGone(Exception):
    """The client closed its connection; all work for it should stop."""

    # Of the call that the upstream had got by then, and may charge for; None if it had got none.
    connect_seconds: float | None = None


class StartupError(Exception):
    """The process cannot start with these settings; the message is one line with the remedy."""
