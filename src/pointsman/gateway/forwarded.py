"""Who sent a request that came through proxies: X-Forwarded-For, as far as it is believed.

Each proxy adds at its end whom it was asked by, and anybody can send one that is made up. So it is
read from its end, for as long as each address is that of a trusted proxy: the first that is none
is who came from outside.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

HOPS_MAX: Final = 16
"""Proxies in a row that are looked behind. Who is inside a trusted network may write thousands."""


def client_address(peer: str, forwarded: bytes, proxies: tuple[str, ...]) -> str:
    """The client's address: the `peer` itself, unless that is one of the trusted `proxies`
    (addresses or networks) and `forwarded` says more."""
    if not proxies or not forwarded:
        return peer
    address = peer
    for told in reversed(forwarded.decode("latin-1").rsplit(",", HOPS_MAX)):
        known = _address(told.strip())
        if known is None or not _is_trusted(address, proxies):
            break
        address = str(known)
    return address


@lru_cache(maxsize=1_024)
def _is_trusted(address: str, proxies: tuple[str, ...]) -> bool:
    known = _address(address)
    return known is not None and any(known in ip_network(proxy) for proxy in proxies)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Some proxies write a port behind it; IPv4 may come as IPv6; a zone, of any length, is of one
    machine only. None for what is no address."""
    host = text
    if text.startswith("["):
        host = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        host = text.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or IPv6Address(int(address))
    return address
