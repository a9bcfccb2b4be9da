"""Ports for servers that are told theirs, and cannot take a free one themselves."""

import contextlib
import socket
from itertools import islice
from random import SystemRandom

FIRST, LAST = 10_000, 32_767
"""Below those that Linux gives to connections, one of which might have a port by the time that its
server wants it."""

_untried = iter(SystemRandom().sample(range(FIRST, LAST + 1), LAST + 1 - FIRST))
"""In no order, so that two processes hardly want the same; each once, since the server before may
still be ending."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that this process was not given before."""
    return list(islice(filter(_is_free, _untried), count))


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("", port)):
        return True
    return False
