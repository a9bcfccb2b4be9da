"""The keys that engines ask for (vLLM's --api-key): which engine is sent which.

Found by the server's host and port, so that a key reaches its own engine and nobody else. Shown
nowhere: no log, state, decision, metric or error has one.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from pointsman.engines.adapters.address import PORT_DEFAULT, one_host_spelling

_Server = tuple[str, int]

NO_KEYS: Mapping[str, str] = MappingProxyType({})


class EngineKeys:
    """By server, for all that ask engines anything; each looks its key up anew, so that another
    one may come while it runs."""

    def __init__(self, keys: Mapping[str, str] = NO_KEYS) -> None:
        self._added: dict[_Server, str] = {}
        self.hold(keys)

    def hold(self, keys: Mapping[str, str]) -> None:
        """Send these from here on, beside those added: an engine's URL, and its key; an empty one
        is none."""
        self._values = {_server(url): f"Bearer {key}" for url, key in keys.items() if key}

    def add(self, url: str, key: str) -> None:
        """The key of an engine that no configuration names, until it is dropped."""
        self._added[_server(url)] = f"Bearer {key}"

    def has_added(self, url: str) -> bool:
        return _server(url) in self._added

    def drop(self, url: str) -> None:
        self._added.pop(_server(url), None)

    def authorization(self, host: str, port: int) -> str:
        """What the header says there; empty without a key."""
        if not (self._values or self._added):
            return ""
        server = one_host_spelling(host), port
        return self._values.get(server) or self._added.get(server, "")

    async def authorize(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """A middleware of aiohttp's clients: the key's header, in the place of any other."""
        if value := self.authorization(request.url.raw_host or "", request.url.port or 0):
            request.headers["Authorization"] = value
        return await handler(request)


def key_problem(key: str) -> str:
    """What is wrong with an engine's key, which is not shown; empty if nothing is."""
    return "" if re.fullmatch(r"[!-~]*", key) else "it holds what no header can carry"


def _server(url: str) -> _Server:
    parts = urlsplit(url)
    host = one_host_spelling(parts.hostname or "")
    return host, parts.port or (443 if parts.scheme == "https" else PORT_DEFAULT)
