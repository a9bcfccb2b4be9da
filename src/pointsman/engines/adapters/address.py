"""Where an engine is, and whether it can be there.

An address is the URL of a server. Where several data-parallel ranks are behind it, each is an
engine of its own: `http://gpu-1:8000#2` is rank 2 there. A fragment is what stays with whoever
uses a URL, so nothing else can be meant by it. A request says in a header which rank it is for.
"""

import os.path
import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urldefrag, urlsplit

PORT_DEFAULT: Final = 80
PORT_MAX: Final = 65_535

ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound

RANK_HEADER: Final = "X-data-parallel-rank"
"""Of vLLM. A rank that does not exist is answered with 400."""


def one_spelling(url: str) -> str:
    """The address as it is written everywhere here, so that equal ones are equal: small letters,
    a short IPv6 address, no port that is the default, no slash at the end, and a rank without
    leading zeros. What is no URL stays as it is."""
    try:
        parts, rank = urlsplit(url), rank_of(url)
        host, port = one_host_spelling(parts.hostname or ""), parts.port
    except ValueError:
        return url
    user, at, _ = parts.netloc.rpartition("@")  # which `url_problem` refuses
    netloc = user + at + (f"[{host}]" if ":" in host else host)
    netloc += "" if port in (None, PORT_DEFAULT) else f":{port}"
    fragment = "" if rank is None else str(rank)
    return parts._replace(netloc=netloc, path=parts.path.rstrip("/"), fragment=fragment).geturl()


@lru_cache(maxsize=1_024)
def one_host_spelling(host: str) -> str:
    """Of the several that an IPv6 address has, or a name beyond ASCII: configurations, gateway and
    aiohttp write them in different ways."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def server_of(url: str) -> str:
    """The server's own URL."""
    return urldefrag(url).url.rstrip("/")


def rank_of(url: str) -> int | None:
    """The rank there; None: whatever the server chooses."""
    fragment = urldefrag(url).fragment
    return int(fragment) if fragment else None


def rank_headers(url: str) -> dict[str, str]:
    """What a request there has to say."""
    rank = rank_of(url)
    return {} if rank is None else {RANK_HEADER: str(rank)}


class Door(NamedTuple):
    """Where this process itself listens; `setting` is what says so."""

    setting: str
    host: str
    port: int

    def is_met_at(self, url: str) -> bool:
        """Whether what is sent to `url` comes here, as far as names tell."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if (parts.port or PORT_DEFAULT) != self.port:
            return False
        is_here = is_loopback(host) or host in ANY_HOST  # which connects to this machine, too
        return host == self.host or (is_here and (is_loopback(self.host) or self.host in ANY_HOST))


def door_problem(url: str, doors: Iterable[Door]) -> str:
    """Why no engine can be at `url`, if it leads back here, again and again; else empty."""
    met = next((door for door in doors if door.is_met_at(url)), None)
    return f"{url} is {met.setting} of this gateway itself" if met else ""


def is_loopback(host: str) -> bool:
    """Whether only this machine's users can reach it."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether it is an IP address, and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def url_problem(url: str) -> str:
    """What is wrong with an engine's URL, and the remedy; empty if nothing is."""
    if re.match(r"^[./~]", url) or os.path.isdir(url):  # which raises for no text
        return f"'{url}' is a path, not the URL of an engine, like http://10.0.0.7:8000"
    if "://" not in url:
        return f"'{url}' has no scheme; did you mean http://{url}?"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"'{url}': {error}"
    if parts.scheme != "http":
        return f"'{url}': the scheme is '{parts.scheme}'; engines are spoken to over http://"
    return _place_problem(url, parts, port)


def _place_problem(url: str, parts: SplitResult, port: int | None) -> str:
    """What is wrong with what follows the scheme."""
    if not parts.hostname or re.search(r"[\s\x00-\x20\x7f]", url):
        return f"{url!r} names no host"
    if parts.username is not None:
        return f"'{parts.hostname}': no user or password belongs here"
    if parts.fragment and not re.fullmatch("[0-9]{1,4}", parts.fragment):
        return f"'{url}': what follows # is a data-parallel rank, a number from 0"
    if parts.path not in ("", "/") or parts.query:
        trimmed = f"{parts.scheme}://{parts.netloc}"
        return f"'{url}' has a path; the gateway adds it itself: write {trimmed}"
    return "" if port != 0 else f"'{url}': port 0 is no place to connect to"


def kv_events_problem(text: str) -> str:
    """What is wrong with a place of KV events: auto, off, or a ZMQ endpoint; else empty."""
    if text in ("auto", "off") or text.startswith("ipc://"):
        return ""
    found = re.fullmatch(r"tcp://[^/\s*]+:(\d{1,5})", text)
    if found and int(found[1]) <= PORT_MAX:
        return ""
    return f"'{text}' is neither auto, off nor like tcp://10.0.0.7:5557"
