"""The hosts to print for a listening address: no client can connect to the wildcards 0.0.0.0 and ::.

The address in the local network is the one the system would send from. Connecting a datagram socket finds it: that
chooses a route and sends nothing.
"""

import ipaddress
import socket

# By wildcard: a remote address, reserved for documentation, to find the route to, and the loopback address.
_WILDCARDS = {
    "0.0.0.0": ((socket.AF_INET, "192.0.2.1"), "127.0.0.1"),
    "::": ((socket.AF_INET6, "2001:db8::1"), "::1"),
}


def reachable_hosts(host: str) -> list[str]:
    """Hosts, in URL form, of a proxy that listens on `host`: for this machine, then for others."""
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        address = host
    if address not in _WILDCARDS:
        return [_in_url(host)]
    route, loopback = _WILDCARDS[address]
    outside = _sending_address(*route)
    return [_in_url(each) for each in (loopback, outside) if each]


def _sending_address(family: socket.AddressFamily, remote: str) -> str | None:
    """The source address of packets to a remote host; None without a network."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((remote, 9))
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    # A link-local address needs an interface name, which clients write differently.
    address = ipaddress.ip_address(found)
    return None if address.is_loopback or address.is_unspecified or address.is_link_local else found


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
