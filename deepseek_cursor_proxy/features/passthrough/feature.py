"""Models of another upstream: the request goes there as it came, and its response comes back as it is.

Cursor's own GPT models keep working this way while its base URL points here. The key is the route's own, from the
environment; the client's key, which is for DeepSeek, is never sent there. `access` decides who may spend it. Nothing is
restored, recorded or retried. Only status, Content-Type and Retry-After of the response head come back, and the key is
removed from the response.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from deepseek_cursor_proxy.api.endpoint import internal_error
from deepseek_cursor_proxy.config.access_keys import is_anthropic_key, is_credential
from deepseek_cursor_proxy.deepseek import hosts, model_resolver
from deepseek_cursor_proxy.errors import BadRequest, ClientGone, ProxyError, Unauthorized
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RelayedApi, RequestReport
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.observers.events import End, PassedThrough, Result
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.upstream.client import Call, raise_for_redirect
from deepseek_cursor_proxy.upstream.connections import Destination
from deepseek_cursor_proxy.upstream.response import UpstreamResponse

# No character that could begin a second header.
_CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,199}")
# The fields that limits, prices and the choice of the upstream depend on.
_CHECKED_NAMES = frozenset({"model", "n", "max_tokens", "max_completion_tokens", "max_output_tokens"})
# A longer line is sent before its end.
_MAX_LINE_BYTES = 1024 * 1024
_STREAMED = End(Result.PASSED_THROUGH, 200, "200")


# Fields for this proxy alone, which other upstreams may refuse.
_OWN_FIELDS = ("cache", "nomyo")


def relay(services: Services, client: ClientRequest, api: RelayedApi, raw: bytes) -> HttpReply | None:
    """The reply of the upstream that the model of a request has; None if it has none. Raises a ProxyError."""
    body = client.body
    key = model_resolver.passthrough_key(body.get("model"), services.config)
    if key is None:
        return None
    named_model = check_names(raw)
    services.access.check_spender(client.caller)
    if (named := client.caller.named) is not None:
        client.report.admission = services.admit_passthrough(services, named, body, len(raw))
    sent = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    # As it came, unless something in it is for this proxy, or the path names the model.
    raw = raw if len(sent) == len(body) and named_model == body.get("model") else encode_json(sent)
    return _send(services, client, api, key, raw)


def _send(services: Services, client: ClientRequest, api: RelayedApi, key: str, raw: bytes) -> HttpReply:
    """The reply of the upstream that a route names; raises ProxyError or ClientGone with nothing left open."""
    route, report = services.config.passthrough[key], client.report
    setting = f'[passthrough."{key}"]'
    credential = os.environ.get(route.key_env, "").strip()
    if not is_credential(credential):
        raise Unauthorized(
            f"{safe_text(client.body['model'], 60)} goes to {_host(route.base_url)} by {setting}, but the environment "
            f"variable {route.key_env} holds no key. Set it where the proxy is started."
        )
    if is_anthropic_key(credential) and hosts.choose("auto", route.base_url) is hosts.DEEPSEEK:
        raise Unauthorized(f"{route.key_env} of {setting} holds a key of Anthropic, which is never sent to DeepSeek.")
    destination = Destination(route.base_url + api.path, _host(route.base_url), f"base_url of {setting}")
    finish = partial(_finish, report, destination.name)
    wants_stream = api.last_event is not None and client.body.get("stream") is True
    try:
        slot = services.upstream_client.call_limits.of(setting).acquire(client.peer, report.namespace)
        response = services.upstream_client.send_to(Call(destination, credential, raw, client.peer), slot)
        finish = partial(finish, may_cost=response.status < 400)
        # The key is the owner's: the client must not read it in the response.
        response.hide(credential)
        if wants_stream and response.status == 200:
            headers = (*_headers(response), ("X-Accel-Buffering", "no"))
            return HttpReply(200, _Stream(response, finish, api), headers)
        with closing(response):
            raise_for_redirect(response)
            body = response.read()
        finish(End(Result.PASSED_THROUGH, response.status, str(response.status)))
        return HttpReply(response.status, body, _headers(response))
    except BaseException as error:
        if isinstance(error, ClientGone) and error.connect_seconds is not None:
            finish = partial(finish, may_cost=True)
        finish(End.of(error))
        raise


def check_names(raw: bytes) -> object:
    """The model of a body; BadRequest for one in which the upstream may read another model or length than this proxy.

    Of a name that stands twice some parsers take the first value, and some compare names without case.
    """
    pairs = json.loads(raw, object_pairs_hook=list)
    names = [name for name, _ in pairs]
    for name in names:
        if (meant := name.casefold()) in _CHECKED_NAMES and (name != meant or names.count(name) > 1):
            raise BadRequest(f"The body must have {meant} once, and in this spelling.", param=meant)
    return dict(pairs).get("model")


def _finish(report: RequestReport, host: str, end: End, *, may_cost: bool = False) -> None:
    """Report how a passed-through request ended; only the first call counts."""
    if not report.has_ended:
        report.end(PassedThrough(report.facts(), host, end, report.seconds, may_cost))


def _headers(response: UpstreamResponse) -> Headers:
    kind = response.headers.get("content-type", "")
    headers: Headers = (("Content-Type", kind if _CONTENT_TYPE.fullmatch(kind) else "application/octet-stream"),)
    if response.retry_after is not None:
        headers += (("Retry-After", str(response.retry_after)),)
    return headers


def _host(base_url: str) -> str:
    return urlsplit(base_url).hostname or base_url


class _Stream:
    """A streamed response, in whole lines so that an error event can follow; closing it ends the call."""

    is_finished = False

    def __init__(self, response: UpstreamResponse, finish: Callable[[End], None], api: RelayedApi) -> None:
        self._response = response
        self._finish = finish
        self._api = api
        self._is_done = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._lines()
            self._finish(_STREAMED)
        except ClientGone:
            raise
        except Exception as error:
            if self._is_done:
                # All of the answer was sent; only the end of the connection was missing.
                self._finish(_STREAMED)
                return
            failure = error if isinstance(error, ProxyError) else internal_error(error)
            self._finish(End.of(failure))
            yield b"\n" + self._api.failure_events(failure)

    def _lines(self) -> Iterator[bytes]:
        rest, last_event = b"", self._api.last_event
        with closing(self._response.pieces()) as pieces:
            for piece in pieces:
                data = rest + piece
                end = data.rfind(b"\n") + 1 if len(data) < _MAX_LINE_BYTES else len(data)
                rest = data[end:]
                if not self._is_done and last_event is not None and last_event.search(data, 0, end):
                    self._is_done = True
                    self._response.end_soon()
                    # Before its last bytes: the client may send the next request as soon as it has them.
                    self._finish(_STREAMED)
                if end:
                    yield data[:end]
        if rest:
            yield rest

    def close(self) -> None:
        self._response.close(was_complete=self._is_done)
        self._finish(End.of(ClientGone()))


def open(services: Services) -> Services:
    return replace(services, relay=relay)
