"""Who may use the proxy.

A tunnel brings strangers to the door, and all of them seem to come from this machine. So nothing is decided by where a
request comes from or what its headers say about that: only its key counts, and it is looked at before the body.

    access_keys are set    these keys, and DeepSeek may be called with a key of the proxy's own
    else, pinned           the first key that DeepSeek accepted since the start
    else                   whoever DeepSeek accepts

Keys of the owner ([passthrough], DEEPSEEK_API_KEY) are spent for listed keys or the pinned one only, on every address
and also where others are served with keys of their own. A request under a foreign name (own_hosts) never spends one and
never pins one.

Wrong keys cost their source a wait, so that nobody tries many. What cannot be guessed never waits, nor does a key that
was right before: a stranger in the same tunnel, whose source is the same, locks nobody out.
"""

import ipaddress
import logging
import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey, is_credential
from deepseek_cursor_proxy.errors import BadRequest, Forbidden, StartupError, TooManyAttempts, Unauthorized, WrongKey
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.own_hosts import Address, OwnHosts
from deepseek_cursor_proxy.redaction import safe_text

_log = logging.getLogger(__name__)

# The one secret that is no setting, so that it is in no file of ours.
HELD_KEY = "DEEPSEEK_API_KEY"

# An editor with a stale key tries a few times; twenty in a minute is somebody who guesses.
_FAILURES_ALLOWED = 20
_SECONDS_PER_FAILURE = 3.0
# More are forgotten, longest unused first: strangers choose how many there are.
_MAX_SOURCES = 4096
_MAX_ACCEPTED = 1024


class Caller(NamedTuple):
    """Somebody at the door: the key they sent, which is also whose reasoning is found, and where they come from."""

    credential: str
    key: AccessKey
    source: str
    address: Address = Address()

    def __repr__(self) -> str:
        """Without the key itself."""
        return f"Caller({self.key}, {self.source!r})"


class Access:
    """Called by handler threads. What changes is in its memory, which a successor with other settings takes over."""

    def __init__(
        self,
        config: ProxyConfig,
        former: "Access | None" = None,
        *,
        environment: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listed = config.access_keys
        self._memory: _Memory = former._memory if former is not None else _Memory(now)
        self.pins = not self._listed and (
            config.pin_key == "always" or (config.pin_key == "exposed" and config.is_exposed)
        )
        # Also where everybody is served, so that it is known who may spend the keys behind [passthrough].
        self.pins_spender = self.pins or (not self._listed and bool(config.passthrough) and config.pin_key != "never")
        self._names = (config.host, *config.public_hosts)
        # Without a list anybody who finds the address would spend it.
        self.held_key = _held_key(environment) if self._listed else None

    # At the door …

    def admit(self, request: HttpRequest) -> Caller:
        """Whoever may ask for an answer; BadRequest, Unauthorized or TooManyAttempts. Reads no body."""
        credential = _credential(request)
        if credential is None:
            whose = "an access key of this proxy" if self.held_key else "your DeepSeek key"
            raise WrongKey(f"No API key. Send {whose} as 'Authorization: Bearer sk-…'.")
        caller = Caller(credential, AccessKey.of(credential), request.source, Address.of(request))
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raises unless this caller is served now: a key may have been pinned since they were let in."""
        wait = 0 if self._memory.has_accepted(caller.key) else self._memory.seconds_to_wait(caller.source)
        served = self._served()
        if served is None:
            if wait:
                raise _too_many(wait)
        elif _is_among(caller.key, (key for key in served if not (wait and key.is_guessable))):
            self._memory.accept(caller.key)
        elif wait:
            raise _too_many(wait)
        else:
            self._memory.fail(caller.source)
            raise self._stranger()

    def check_call(self, caller: Caller) -> None:
        """Raises unless DeepSeek may be called for this caller now, with their own key or with the held one."""
        if self.held_key is None:
            self.check(caller)
        else:
            self.check_spending(caller)

    def check_spending(self, caller: Caller) -> None:
        """Raises unless a key of the owner may be spent for this caller: Unauthorized, Forbidden."""
        self.check(caller)
        if (foreign := self._foreign_part(caller)) is not None:
            raise Forbidden(
                "This would spend a key of whoever runs the proxy, and the request came under a name that is not the "
                f"proxy's ({safe_text(foreign)}). Use its IP address or localhost; whoever runs the proxy behind a "
                "tunnel or reverse proxy names that host in public_hosts."
            )
        if self._listed:
            return
        if not self.pins_spender:
            raise Unauthorized(
                "This model is asked with a key of whoever runs the proxy, and with pin_key = never it is not known "
                "who that is. Whoever runs the proxy names the keys that may use it in access_keys."
            )
        pinned = self._memory.pinned
        if pinned is None:
            raise Unauthorized(
                "This model is asked with a key of whoever runs the proxy, and it is not known yet who that is. "
                "Ask a DeepSeek model first, or name your key in access_keys."
            )
        if not _is_among(caller.key, (pinned,)):
            # A guess like any other, also where everybody is served with a key of their own.
            self.refused(caller)
            raise Unauthorized(
                "This model is asked with a key of whoever runs the proxy, for the first key that DeepSeek accepted "
                "since it started. Use that key, or restart the proxy to use another one; whoever runs it can name "
                "several in access_keys."
            )

    def _foreign_part(self, caller: Caller) -> str | None:
        return OwnHosts((*self._names, self._memory.tunnel_host)).foreign_part(caller.address)

    def name_tunnel(self, host: str) -> None:
        """The tunnel that the proxy opened has this name now."""
        self._memory.tunnel_host = host

    def _served(self) -> tuple[AccessKey, ...] | None:
        """The keys that are served; None when DeepSeek is to decide."""
        if self._listed:
            return self._listed
        pinned = self._memory.pinned if self.pins else None
        return (pinned,) if pinned is not None else None

    def _stranger(self) -> Unauthorized:
        if self._listed:
            return WrongKey(
                "This key is not among the access keys of this proxy. Check the key that your client sends; whoever "
                "runs the proxy names the keys it serves in access_keys."
            )
        return WrongKey(
            "This proxy serves only the key that was used first since it started. Use that key, or restart the proxy "
            "to use another one; whoever runs it can name several in access_keys, or set pin_key to never."
        )

    # What DeepSeek said …

    def accepted(self, caller: Caller) -> None:
        """DeepSeek answered a call for this caller; the first time, that may decide whose proxy this is."""
        if self._memory.accept(caller.key, pin=self._may_pin(caller)):
            may = "is served" if self.pins else "may use [passthrough]"
            _log.info("from now on only the key %s %s, the first that DeepSeek accepted (pin_key)", caller.key, may)

    def _may_pin(self, caller: Caller) -> bool:
        if not self.pins_spender or self._memory.pinned is not None:
            return False
        foreign = self._foreign_part(caller)
        if foreign is not None and self._memory.first_unpinned():
            _log.warning(
                "a key that DeepSeek accepted is not pinned, because its request came under another name (%s); if that "
                "is your tunnel or reverse proxy, name it in public_hosts",
                safe_text(foreign),
            )
        return foreign is None

    def refused(self, caller: Caller) -> None:
        """This caller's key is not known to DeepSeek, or is not the one that may spend the owner's keys."""
        if not self._memory.has_accepted(caller.key):
            self._memory.fail(caller.source)


class _Failures(NamedTuple):
    """How many wrong keys of a source are not forgiven yet, as of some moment; time forgives one after the other."""

    number: float = 0.0
    as_of: float = 0.0
    is_told: bool = False

    def at(self, now: float) -> "_Failures":
        left = max(0.0, self.number - (now - self.as_of) / _SECONDS_PER_FAILURE)
        return _Failures(left, now, self.is_told and left > 0)

    @property
    def seconds_to_wait(self) -> int:
        """Until one more is allowed; 0 when it is right now."""
        return max(0, math.ceil((self.number + 1 - _FAILURES_ALLOWED) * _SECONDS_PER_FAILURE))


class _Memory:
    """What is known about keys and sources since the start. Called by handler threads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Protects everything below.
        self._lock = threading.Lock()
        self._pinned: AccessKey | None = None
        self._accepted: OrderedDict[bytes, None] = OrderedDict()
        self._failures: OrderedDict[bytes, _Failures] = OrderedDict()
        self._was_unpinned = False
        # The name of the tunnel that the proxy opened; written by its watcher, as a whole.
        self.tunnel_host = ""

    @property
    def pinned(self) -> AccessKey | None:
        return self._pinned

    def accept(self, key: AccessKey, *, pin: bool = False) -> bool:
        """Whether this pinned the key."""
        with self._lock:
            _remember(self._accepted, key.digest, None, _MAX_ACCEPTED)
            if not pin or self._pinned is not None:
                return False
            # Once pinned it never has to wait, however short it is.
            self._pinned = AccessKey(key.digest)
            return True

    def first_unpinned(self) -> bool:
        """Whether this is the first time that a key is not pinned because of its request's name."""
        with self._lock:
            was, self._was_unpinned = self._was_unpinned, True
        return not was

    def has_accepted(self, key: AccessKey) -> bool:
        with self._lock:
            return key.digest in self._accepted

    def fail(self, source: str) -> None:
        network = _network(source)
        with self._lock:
            before = self._unforgiven(network)
            # Many at once, all let in before the first was known to be wrong, do not add up to hours.
            after = _Failures(min(before.number + 1, _FAILURES_ALLOWED), self._now(), before.is_told)
            is_news = after.seconds_to_wait > 0 and not before.is_told
            _remember(self._failures, network, after._replace(is_told=before.is_told or is_news), _MAX_SOURCES)
        if is_news:
            _log.warning("too many wrong keys from %s; unknown keys from there have to wait", source or "a client")

    def seconds_to_wait(self, source: str) -> int:
        """How long until an unknown key of that source is looked at; 0 when it is right now."""
        if not self._failures:
            return 0
        with self._lock:
            return self._unforgiven(_network(source)).seconds_to_wait

    def _unforgiven(self, network: bytes) -> "_Failures":
        return self._failures.get(network, _Failures()).at(self._now())


def _too_many(wait: int) -> TooManyAttempts:
    return TooManyAttempts(
        f"Too many wrong keys came from where you are. Check the key that your client sends and wait {wait} s.",
        retry_after=wait,
    )


def _is_among(key: AccessKey, served: Iterable[AccessKey]) -> bool:
    """Takes as long for a key that is nearly right, or the first of many, as for any other."""
    # Here, because it brings OpenSSL with it, which listening does not need.
    import hmac

    found = False
    for each in served:
        found |= hmac.compare_digest(key.digest, each.digest)
    return found


def _remember(known: OrderedDict[bytes, Any], name: bytes, value: Any, limit: int) -> None:
    known[name] = value
    known.move_to_end(name)
    if len(known) > limit:
        known.popitem(last=False)


def _network(source: str) -> bytes:
    """Who is one stranger: an address, or the /64 that everybody with IPv6 has to themselves."""
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return source.encode()
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return address.packed[:8] if mapped is None else mapped.packed
    return address.packed


# Reading …


def _credential(request: HttpRequest) -> str | None:
    """The key of a request; a BadRequest when api-key, which is Azure's header, holds another one.

    Authorization and x-api-key may differ: clients with two variables set send both. Each API reads its own header
    first, and the other one only where that is absent.
    """
    scheme, _, token = (request.header("authorization") or "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    named = (request.header("x-api-key") or "").strip()
    key = named or bearer if _is_anthropic(request) else bearer or named
    azure = (request.header("api-key") or "").strip()
    if key and azure and key != azure:
        raise BadRequest("Two different keys, one of them in api-key. Send one key.", code="two_keys")
    key = key or azure
    return key if is_credential(key) else None


_ANTHROPIC_PATH = re.compile(r"(?:/+v1)*/+messages(?:/|\Z)")
_SHARED_PATH = re.compile(r"(?:/+v1)*/+models(?:/|\Z)")


def _is_anthropic(request: HttpRequest) -> bool:
    """Whether a request speaks Anthropic's API, in which the key is in x-api-key."""
    if _ANTHROPIC_PATH.match(request.path):
        return True
    return request.header("anthropic-version") is not None and bool(_SHARED_PATH.match(request.path))


def _held_key(environment: Mapping[str, str]) -> str | None:
    key = environment.get(HELD_KEY, "").strip()
    if key and not is_credential(key):
        raise StartupError(f"{HELD_KEY} has a blank or a character that is no visible ASCII; set it anew, or unset it")
    return key or None
