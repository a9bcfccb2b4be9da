"""File descriptors of this process: how many it may have, and whether one was to be had.

Who has none left cannot connect to anybody, which is no news of whom it wanted to connect to.
"""

import errno
import resource
import socket
from contextlib import suppress
from typing import Final

MACOS_DESCRIPTORS_MAX: Final = 10_240
"""Of a process there (OPEN_MAX), where the hard limit is none and the soft one must not be."""

_USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE})


def raise_descriptor_limit() -> int | None:
    """Raise the soft limit of file descriptors to the hard one, or as far as the system goes. The
    limit; None if unlimited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, MACOS_DESCRIPTORS_MAX):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
            break
    return None if soft == resource.RLIM_INFINITY else soft


def is_for_want_of_descriptors(error: BaseException) -> bool:
    """Whether that is why it failed. A name that could not be looked up does not say so, so one is
    tried."""
    if not isinstance(error, OSError):
        return False
    if error.errno in _USED_UP:
        return True
    try:
        socket.socket().close()
    except OSError as lack:
        return lack.errno in _USED_UP
    return False
