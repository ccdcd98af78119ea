"""Who may ask the admin listener: a request under this machine's name, with the key.

    Host      an IP address, localhost, *.localhost or `admin_host`: a page that reaches us by DNS rebinding has another
    Origin    none, or the very host of the request: other pages of this machine are foreign as well
    key       `admin_key`, or the one in admin.key; for /metrics also `metrics_key`; in Authorization, never in a cookie

Keys are compared in constant time, and wrong ones make their sender wait, as on the proxy's own port (`access`).
"""

from dataclasses import replace

from deepseek_cursor_proxy.access import Access
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.errors import Forbidden, WrongKey
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.http1.own_hosts import Address, OwnHosts
from deepseek_cursor_proxy.redaction import safe_text


class AdminAccess:
    """Called by connection threads; `Access` guards what changes."""

    def __init__(self, config: ProxyConfig, admin_key: AccessKey, former: "AdminAccess | None" = None) -> None:
        """New keys take over the failed attempts of the former ones."""
        self._hosts = OwnHosts([config.admin_host])
        former_access = former._full if former is not None else None
        self._full: Access = Access(replace(config, access_keys=(admin_key,)), former_access, environment={})
        keys = (admin_key,) if config.metrics_key is None else (admin_key, config.metrics_key)
        self._metrics = Access(replace(config, access_keys=keys), self._full, environment={})

    def check_address(self, request: HttpRequest) -> None:
        """Forbidden for a request under a foreign name, or from a page of another origin."""
        address = Address.of(request)
        foreign = self._hosts.foreign_part(address._replace(origin=None))
        origin = address.origin
        if foreign is None and origin is not None and origin.lower() not in _origins(request):
            foreign = f"Origin: {origin}"
        if foreign is not None:
            raise Forbidden(
                f"The dashboard answers under its own address only, and this request came under {safe_text(foreign)}. "
                "Open it at http://127.0.0.1 or localhost."
            )

    def check_key(self, request: HttpRequest, *, is_for_metrics: bool = False) -> None:
        """WrongKey or TooManyAttempts unless the request has the key."""
        try:
            (self._metrics if is_for_metrics else self._full).admit(request)
        except WrongKey:
            raise WrongKey(
                "The key of the dashboard is missing or wrong. Send it as 'Authorization: Bearer …'; it is admin_key, "
                "or else in admin.key beside the store. `deepseek-cursor-proxy dashboard` opens the page with it.",
                code="wrong_admin_key",
            ) from None


def _origins(request: HttpRequest) -> tuple[str, ...]:
    host = (request.header("host") or "").lower()
    # A reverse proxy of the owner may speak TLS.
    return f"http://{host}", f"https://{host}"
