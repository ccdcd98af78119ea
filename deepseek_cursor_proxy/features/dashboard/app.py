"""AdminApp: HttpRequest in, HttpReply out, for the admin listener: the table of paths and the headers of every reply.

A request is checked in this order: Host and Origin, method, key, path. Only the files of the dashboard, which contain
no data, and the proof for commands (`running`) need no key. Every reply forbids what the page does not need: other
hosts, frames, guesses about types.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any
from urllib.parse import parse_qsl

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.api.routes import error_headers, load
from deepseek_cursor_proxy.cli.running_proxy import PROOF_PATH, proof
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.features.dashboard import requests, stats
from deepseek_cursor_proxy.features.dashboard.service import AdminContext
from deepseek_cursor_proxy.http1.messages import Headers, HttpReply, HttpRequest
from deepseek_cursor_proxy.http1.own_hosts import Address, OwnHosts
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.private_files import InstallationSecret

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Headers = (
    ("Content-Security-Policy", _CSP),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_METHODS = "GET, HEAD"
_METRICS = "/metrics"
_NONCE = re.compile(r"nonce=([0-9a-f]{32})")
_MOST_FIELDS = 20
# No path leads out of the folders.
_FILE = re.compile(r"/(?P<folder>(?:[a-z]+/)*)(?P<name>[a-z_]+(?P<type>\.[a-z]+))")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}

# Called with the context, the fields of the query and the groups of the path.
_Endpoint = Callable[..., HttpReply | dict[str, Any]]
_ENDPOINTS: tuple[tuple[str, _Endpoint], ...] = (
    ("/healthz", lambda context, fields: {"status": "alive"}),
    ("/readyz", lambda context, fields: stats.ready(context)),
    (_METRICS, lambda context, fields: stats.metrics(context)),
    ("/api/stats", lambda context, fields: stats.stats(context)),
    ("/api/config", lambda context, fields: stats.settings(context)),
    ("/api/requests", requests.page),
    ("/api/requests/(-?[0-9]{1,15})", requests.details),
)


class AdminApp:
    """Called by the threads of the listener; `reload` by the main thread."""

    def __init__(self, context: AdminContext, routes: Sequence[tuple[str, str]] = ()) -> None:
        """`routes` are those of features, each with the name of its endpoint; they come before our own."""
        self._context = context
        self._endpoints: tuple[tuple[str, str | _Endpoint], ...] = (*routes, *_ENDPOINTS)
        self._secret = InstallationSecret(context.config.reasoning_content_path)
        self._access = AdminAccess(context)

    def __call__(self, request: HttpRequest) -> HttpReply:
        try:
            reply = self._reply(request)
        except errors.ProxyError as error:
            reply = _error_reply(error)
        return HttpReply(reply.status, reply.body, (*reply.headers, *_HEADERS))

    def reload(self) -> None:
        self._access = AdminAccess(self._context, self._access)

    def _reply(self, request: HttpRequest) -> HttpReply:
        self._access.check_address(request)
        if request.method not in ("GET", "HEAD"):
            raise errors.MethodNotAllowed(f"The dashboard answers {_METHODS}.", _METHODS)
        if (file := static_file(request.path)) is not None:
            return file
        if request.path == PROOF_PATH:
            return self._prove(request.query)
        self._access.check_key(request, is_for_metrics=request.path == _METRICS)
        try:
            fields = dict(parse_qsl(request.query, max_num_fields=_MOST_FIELDS))
        except ValueError:
            raise errors.BadRequest("The query has too many fields.") from None
        for pattern, endpoint in self._endpoints:
            if (match := re.fullmatch(pattern, request.path)) is not None:
                call = load(endpoint) if isinstance(endpoint, str) else endpoint
                found = call(self._context, fields, *match.groups())
                return found if isinstance(found, HttpReply) else HttpReply.json(found)
        raise errors.NotFound("There is nothing at this path of the dashboard; the API is at the proxy's own port.")

    def _prove(self, query: str) -> HttpReply:
        if (nonce := _NONCE.fullmatch(query)) is None:
            raise errors.BadRequest("The proof wants a nonce of 32 hexadecimal digits.")
        # A command asks, which may read the ledger next.
        self._context.services().flush()
        answer = proof(self._secret.read(), self._context.url, nonce[1])
        return HttpReply(200, answer.encode(), (("Content-Type", "text/plain"),))


def _error_reply(error: errors.ProxyError) -> HttpReply:
    headers = error_headers(error)
    if isinstance(error, errors.Unauthorized):
        headers += (("WWW-Authenticate", "Bearer"),)
    return HttpReply.json({"error": {"message": error.message, "code": error.code}}, error.status, headers)


class AdminAccess:
    """Who may ask: a request under this machine's name, with the key. Connection threads call it.

    Host      an IP address, localhost, *.localhost or `admin_host`: a page that reaches us by DNS rebinding has another
    Origin    none, or the very host of the request: pages of other programs on this machine are foreign, too
    key       `admin_key`, or the one in admin.key; for /metrics also `metrics_key`; in Authorization, never in a cookie

    Keys are compared in constant time, and wrong ones make their sender wait, as on the proxy's own port (`Access`).
    """

    def __init__(self, context: AdminContext, former: "AdminAccess | None" = None) -> None:
        """New keys take over the failed attempts of the former ones."""
        config = context.config
        key = config.admin_key or AccessKey.of(context.own_key or "")
        self._hosts = OwnHosts([config.admin_host])
        former_access = former._full if former is not None else None
        self._full: Access = Access(replace(config, access_keys=(key,), keys={}), former_access, environment={})
        keys = (key,) if config.metrics_key is None else (key, config.metrics_key)
        self._metrics = Access(replace(config, access_keys=keys, keys={}), self._full, environment={})

    def check_address(self, request: HttpRequest) -> None:
        """Forbidden for a request under a foreign name, or from a page of another origin."""
        address = Address.of(request)
        foreign = self._hosts.foreign_part(address._replace(origin=None))
        origin, host = address.origin, (request.headers.get("host") or "").lower()
        # https: a reverse proxy of the owner may speak TLS.
        if foreign is None and origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            foreign = f"Origin: {origin}"
        if foreign is not None:
            raise errors.Forbidden(
                f"The dashboard answers under its own address only, and this request came under {safe_text(foreign)}. "
                "Open it at http://127.0.0.1 or localhost."
            )

    def check_key(self, request: HttpRequest, *, is_for_metrics: bool = False) -> None:
        """WrongKey or TooManyAttempts unless the request has the key."""
        try:
            (self._metrics if is_for_metrics else self._full).admit(request)
        except errors.WrongKey:
            raise errors.WrongKey(
                "The key of the dashboard is missing or wrong. Send it as 'Authorization: Bearer …'; it is admin_key, "
                "or else in admin.key beside the store. `deepseek-cursor-proxy dashboard` opens the page with it.",
                code="wrong_admin_key",
            ) from None


def static_file(path: str, features: Traversable | None = None) -> HttpReply | None:
    """A file of the dashboard or a view of a feature, read when a browser asks; they have no data and need no key.

    None for any other path.
    """
    found = _FILE.fullmatch("/index.html" if path == "/" else path)
    if found is None or found["type"] not in _TYPES:
        return None
    # By way of resources, because the package may be in a zip file.
    features = features or files("deepseek_cursor_proxy.features")
    places = [features.joinpath("dashboard", "page", found["folder"], found["name"])]
    if found["folder"] == "js/views/":
        places += [feature.joinpath("views", found["name"]) for feature in features.iterdir()]
    for place in places:
        if place.is_file():
            return HttpReply(200, place.read_bytes(), (("Content-Type", _TYPES[found["type"]]),))
    return None
