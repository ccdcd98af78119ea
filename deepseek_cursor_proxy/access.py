"""Access control: which caller may use the proxy, and which may spend the owner's keys.

All requests of a tunnel seem to come from this machine. So neither the IP address of a client nor what its headers say
about it decides anything: only the key counts, and it is checked before the body is read.

    access_keys set    these keys; DeepSeek may be called with the proxy's own key (DEEPSEEK_API_KEY)
    else, pinned       the first key that DeepSeek accepted since the start
    else               any key that DeepSeek accepts

A key of [keys.NAME] is an access key with a name, which may expire. `features/keys` has its limits.

The owner's keys ([passthrough], [upstreams], DEEPSEEK_API_KEY) are spent for access keys or the pinned key only, on
every address, even where other callers are served with their own keys. A request under a name that is not the proxy's
(own_hosts) never spends an owner's key and never pins one.

A caller is known (`knows`) once an upstream has accepted its key, in this run or an earlier one, or if access_keys
lists it. Until then its requests cost bounded memory and a line of the log: no store writes a row for them, no metric
gets a label. This is the only place that decides it; the report of a request carries the answer to all observers.

An IP address that sends wrong keys has to wait, against guessing. A key too long to guess never waits, nor one that was
accepted before: a stranger in the same tunnel, who has the same address, cannot lock the owner out.
"""

import ipaddress
import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from deepseek_cursor_proxy import errors
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey, is_anthropic_key, is_credential, why_not_sendable
from deepseek_cursor_proxy.config.values import ip_address
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.http1.own_hosts import Address, OwnHosts
from deepseek_cursor_proxy.redaction import safe_text

if TYPE_CHECKING:
    from deepseek_cursor_proxy.config.named_keys import NamedKey

_log = logging.getLogger(__name__)

# A secret, and therefore no setting: it is in no file of ours.
HELD_KEY = "DEEPSEEK_API_KEY"

# An editor with a stale key tries a few times; twenty tries in a minute are guesses.
_FAILURES_ALLOWED = 20
_SECONDS_PER_FAILURE = 3.0
# More are forgotten, longest unused first: strangers decide how many there are.
_MAX_NETWORKS = 4096
_MAX_ACCEPTED = 1024


class Caller(NamedTuple):
    """The sender of a request: its key, which also selects whose reasoning is found."""

    credential: str
    key: AccessKey
    http: HttpRequest
    # The table [keys.NAME] that the key is in.
    named: "NamedKey | None" = None

    def __repr__(self) -> str:
        return f"Caller({self.key}, {self.http.client_ip!r})"


class Access:
    """Called by any thread. All mutable state is in `_state`, which an Access with new settings takes over."""

    def __init__(
        self,
        config: ProxyConfig,
        former: "Access | None" = None,
        *,
        environment: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access_keys = config.served_keys
        self._named = {key.digest: named for named in config.keys.values() for key in named.keys}
        self._environment = environment
        self._state: _State = former._state if former is not None else _State(now)
        self.can_pin = not self._access_keys and config.is_exposed
        # Also where every key is served: the pinned one may spend the keys of [passthrough] and [upstreams].
        has_owner_keys = bool(config.passthrough) or any(table.key_env for table in config.upstreams.values())
        self.can_pin_spender = self.can_pin or (not self._access_keys and has_owner_keys)
        self._names = (config.host, *config.public_hosts)
        # Without access_keys every stranger who finds the address would spend it.
        self.held_key = _held_key(environment) if self._access_keys else None

    def admit(self, request: HttpRequest) -> Caller:
        """The caller, if it is served; raises BadRequest, Unauthorized or TooManyAttempts. Reads no body."""
        header = request.headers.get
        credential = _credential(header("authorization"), header("x-api-key"), header("api-key"))
        if not is_credential(credential):
            whose = "an access key of this proxy" if self.held_key else "your DeepSeek key"
            why = "No API key. " + ("What came is not one, perhaps the example of a page. " if credential else "")
            raise errors.WrongKey(f"{why}Send {whose} as 'Authorization: Bearer KEY'.")
        key = AccessKey.of(credential)
        caller = Caller(credential, key, request, self._named.get(key.digest))
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raise unless this caller is served now: a key may have been pinned since it was admitted."""
        wait = 0 if self._state.has_accepted(caller.key) else self._state.seconds_to_wait(caller.http.client_ip)
        pinned = self._state.pinned if self.can_pin else None
        served = self._access_keys or ((pinned,) if pinned is not None else ())
        if served and _is_among(caller.key, (key for key in served if not (wait and key.is_guessable))):
            self._state.accept(caller.key)
            if caller.named is not None:
                _check_expiry(caller.named)
        elif wait:
            raise errors.TooManyAttempts(
                f"Too many wrong keys came from where you are. Check the key that your client sends and wait {wait} s.",
                retry_after=wait,
            )
        elif served:
            self._state.fail(caller.http.client_ip)
            raise self._unknown_key()
        # Else DeepSeek decides.

    def upstream_key(self, caller: Caller) -> str | None:
        """The owner's key that upstreams are called with for this caller; None: the caller's own.

        Raises UpstreamFailed if the caller's `upstream_key_env` holds no key, which is not the caller's fault.
        """
        if caller.named is None or not (variable := caller.named.upstream_key_env):
            return self.held_key
        key = self._environment.get(variable, "").strip()
        if reason := why_not_sendable(key):
            _log.error("%s of keys.%s: %s", variable, caller.named.name, reason)
            raise errors.UpstreamFailed(
                f"The environment variable {variable}, with the upstream's key for {caller.named.name}, holds no key "
                "that can be sent. The owner must set it and restart the proxy.",
                code="held_key_refused",
            )
        return key

    def knows(self, caller: Caller, digest: str) -> bool:
        """Whether an upstream has accepted this caller's key, or access_keys lists it; `digest` names it in stores."""
        # `check` has accepted a listed key.
        return self._state.has_accepted(caller.key) or self._state.was_accepted_before(digest)

    def check_call(self, caller: Caller) -> None:
        """Raise unless DeepSeek may be called for this caller now, with its own key or one of the owner."""
        if self.held_key is None and (caller.named is None or not caller.named.upstream_key_env):
            self.check(caller)
        else:
            self.check_spender(caller)

    def check_spender(self, caller: Caller) -> None:
        """Raise Unauthorized or Forbidden unless a key of the owner may be spent for this caller."""
        self.check(caller)
        if (refusal := self.spend_refusal(caller)) is not None:
            self.count_refused_spender(caller)
            raise refusal

    def count_refused_spender(self, caller: Caller) -> None:
        """Count a caller that may not spend the owner's keys: a key other than the pinned one is a guess."""
        if not self._access_keys and self._state.pinned is not None and self._foreign_part(caller) is None:
            self.record_refused(caller)

    def spend_refusal(self, caller: Caller) -> errors.Unauthorized | errors.Forbidden | None:
        """Why this served caller may not spend a key of the owner; None if it may."""
        if (foreign := self._foreign_part(caller)) is not None:
            return errors.Forbidden(
                "This would spend a key of the proxy's owner, and the request came under a name that is not the "
                f"proxy's ({safe_text(foreign)}). Use its IP address or localhost; behind a tunnel or reverse proxy, "
                "the owner names that host in public_hosts."
            )
        if self._access_keys:
            return None
        pinned = self._state.pinned
        if pinned is None:
            return errors.Unauthorized(
                "This model is called with a key of the proxy's owner, and no caller has proved to be the owner yet. "
                "Ask a DeepSeek model first, or name your key in access_keys."
            )
        if not _is_among(caller.key, (pinned,)):
            return errors.Unauthorized(
                "This model is called with a key of the proxy's owner, which only the first key that DeepSeek accepted "
                "may spend. Use that key, or restart the proxy to use another one; the owner can name several in "
                "access_keys."
            )
        return None

    def _foreign_part(self, caller: Caller) -> str | None:
        return OwnHosts((*self._names, self._state.tunnel_host)).foreign_part(Address.of(caller.http))

    def ask_before(self, was_accepted_before: Callable[[str], bool]) -> None:
        """Ask this whether a caller, named by its digest, got an answer in an earlier run."""
        self._state.was_accepted_before = was_accepted_before

    def set_tunnel_host(self, host: str) -> None:
        """Accept this host name, of the tunnel that the proxy opened."""
        self._state.tunnel_host = host

    def _unknown_key(self) -> errors.Unauthorized:
        if self._access_keys:
            return errors.WrongKey(
                "This key is not among the access keys of this proxy, or no longer. Check the key that your client "
                "sends; the owner of the proxy names the keys it serves in access_keys and [keys]."
            )
        return errors.WrongKey(
            "This proxy serves only the key that was used first since it started. Use that key, or restart the proxy "
            "to use another one; its owner can name several in access_keys."
        )

    def record_accepted(self, caller: Caller) -> None:
        """DeepSeek accepted a call for this caller; the first one may pin its key."""
        may_pin = self.can_pin_spender and self._state.pinned is None
        if may_pin and (foreign := self._foreign_part(caller)) is not None:
            may_pin = False
            if not self._state.has_warned_of_host:
                self._state.has_warned_of_host = True
                _log.warning(
                    "a key that DeepSeek accepted is not pinned, because its request came under another name (%s); if "
                    "that is your tunnel or reverse proxy, name it in public_hosts",
                    safe_text(foreign),
                )
        if self._state.accept(caller.key, pin=may_pin):
            may = "is served" if self.can_pin else "may spend the owner's keys"
            _log.info("from now on only the key %s %s, the first that DeepSeek accepted", caller.key, may)

    def record_refused(self, caller: Caller) -> None:
        """DeepSeek does not know this caller's key, or the key may not spend the owner's keys."""
        if not self._state.has_accepted(caller.key):
            self._state.fail(caller.http.client_ip)


class _State:
    """Accepted keys and failures since the start. Called by any thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Whether a caller, named by its digest, got an answer in an earlier run.
        self.was_accepted_before: Callable[[str], bool] = lambda digest: False
        # The name of the tunnel that the proxy opened; its watcher thread assigns it.
        self.tunnel_host = ""
        self.has_warned_of_host = False
        # Protects all fields below, which are also read without it.
        self._lock = threading.Lock()
        self.pinned: AccessKey | None = None
        self._accepted: OrderedDict[bytes, None] = OrderedDict()
        # By network, the moment at which its wrong keys are forgotten, and whether we have warned of them.
        self._failures: OrderedDict[bytes, tuple[float, bool]] = OrderedDict()

    def accept(self, key: AccessKey, *, pin: bool = False) -> bool:
        """Remember an accepted key and, with `pin`, pin it; whether this call pinned it."""
        with self._lock:
            _remember(self._accepted, key.digest, None, _MAX_ACCEPTED)
            is_pinned = pin and self.pinned is None
            if is_pinned:
                # Without is_guessable: the pinned key never waits, however short it is.
                self.pinned = AccessKey(key.digest)
        return is_pinned

    def has_accepted(self, key: AccessKey) -> bool:
        return key.digest in self._accepted

    def fail(self, client_ip: str) -> None:
        """Count a wrong key: each is forgotten _SECONDS_PER_FAILURE after the one before it."""
        network, now = _network(client_ip), self._now()
        with self._lock:
            until, has_warned = self._failures.get(network, (now, False))
            has_warned = has_warned and until > now
            # Many at once, admitted before the first failed, do not add up to hours.
            until = min(max(until, now) + _SECONDS_PER_FAILURE, now + _FAILURES_ALLOWED * _SECONDS_PER_FAILURE)
            is_news = not has_warned and _seconds_to_wait(until - now) > 0
            _remember(self._failures, network, (until, has_warned or is_news), _MAX_NETWORKS)
        if is_news:
            _log.warning("too many wrong keys from %s; unknown keys from there have to wait", client_ip or "a client")

    def seconds_to_wait(self, client_ip: str) -> int:
        """Seconds until an unknown key from there is checked again; 0 for now."""
        if not self._failures:
            return 0
        with self._lock:
            until, _ = self._failures.get(_network(client_ip), (0.0, False))
        return _seconds_to_wait(until - self._now())


def _seconds_to_wait(left: float) -> int:
    """How long until one more wrong key is allowed, if all are forgotten in `left` seconds."""
    return max(0, math.ceil(left - (_FAILURES_ALLOWED - 1) * _SECONDS_PER_FAILURE))


def _check_expiry(named: "NamedKey") -> None:
    if named.expires is None or time.time() < named.expires:
        return
    from deepseek_cursor_proxy.config.named_keys import format_moment

    raise errors.WrongKey(
        f"The key of {named.name} expired at {format_moment(named.expires)}. Ask the owner of the proxy for a new one.",
        code="key_expired",
    )


def _is_among(key: AccessKey, served: Iterable[AccessKey]) -> bool:
    """Compare in constant time: as long for a key that is nearly right, or the first of many, as for any other."""
    # Imported late: it loads OpenSSL, which listening does not need.
    import hmac

    found = False
    for other in served:
        found |= hmac.compare_digest(key.digest, other.digest)
    return found


def _remember(known: OrderedDict[bytes, Any], name: bytes, value: Any, limit: int) -> None:
    known[name] = value
    known.move_to_end(name)
    if len(known) > limit:
        known.popitem(last=False)


def _network(client_ip: str) -> bytes:
    """The address, or the /64 network of an IPv6 address, which one household or server has to itself."""
    address = ip_address(client_ip)
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return address.packed[:8] if mapped is None else mapped.packed
    return client_ip.encode() if address is None else address.packed


# A client sends the same headers with every request.
@lru_cache(32)
def _credential(authorization: str | None, x_api_key: str | None, api_key: str | None) -> str:
    """The key of a request, "" without one; BadRequest when api-key, Azure's header, holds another key.

    Authorization and x-api-key may differ: Claude Code sends both when both of its variables are set. The bearer token
    wins, as at DeepSeek. A key of Anthropic never counts, so that it is never forwarded; WrongKey if there is no other.
    """
    scheme, _, token = (authorization or "").partition(" ")
    bearer, azure = token.strip() if scheme.lower() == "bearer" else "", (api_key or "").strip()
    given = list(filter(None, (bearer, (x_api_key or "").strip(), azure)))
    own = [key for key in given if not is_anthropic_key(key)]
    if given and not own:
        raise errors.WrongKey(
            "This is a key of Anthropic (sk-ant-…), which is never sent to DeepSeek. Set ANTHROPIC_AUTH_TOKEN to the "
            "key for this proxy, and unset ANTHROPIC_API_KEY."
        )
    if azure in own and own[0] != azure:
        raise errors.BadRequest("Two different keys, one of them in api-key. Send one key.", code="two_keys")
    return own[0] if own else ""


def _held_key(environment: Mapping[str, str]) -> str | None:
    key = environment.get(HELD_KEY, "").strip()
    if key and (problem := why_not_sendable(key)):
        raise errors.StartupError(f"{HELD_KEY}: {problem}; set it to a DeepSeek key, or unset it")
    return key or None
