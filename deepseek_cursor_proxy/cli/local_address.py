"""Hosts for the URL that people paste: 0.0.0.0 and :: are addresses to listen on, and nobody can connect to them.

The address in the local network is the one the system would send from. Connecting a datagram socket finds it: that
chooses a route and sends nothing.
"""

import ipaddress
import socket

# Addresses that documentation keeps free, so that they belong to nobody, and this machine's own.
_ANYWHERE = {
    "0.0.0.0": ((socket.AF_INET, "192.0.2.1"), "127.0.0.1"),
    "::": ((socket.AF_INET6, "2001:db8::1"), "::1"),
}


def reachable_hosts(host: str) -> list[str]:
    """Hosts as a URL has them, at which a proxy that listens on `host` is reached: by this machine, then by others."""
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        address = host
    if address not in _ANYWHERE:
        return [_in_url(host)]
    route, loopback = _ANYWHERE[address]
    outside = _sending_address(*route)
    return [_in_url(each) for each in (loopback, outside) if each]


def _sending_address(family: socket.AddressFamily, remote: str) -> str | None:
    """The address that packets to a remote host would come from; None without a network."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    # A link-local one needs the name of an interface, and clients differ in how they write that.
    address = ipaddress.ip_address(found)
    return None if address.is_loopback or address.is_unspecified or address.is_link_local else found


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
