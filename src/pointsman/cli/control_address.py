"""Where agents and scheduler meet, and the secret that they share."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pointsman.wire.control import ControlAddress
from pointsman.wire.control_auth import SECRET_BYTES_MIN

SECRET_VARIABLE = "POINTSMAN_AGENT_SECRET"  # noqa: S105 - its name, not its value
SECRET_BYTES_MAX = 4_096


class UnusableControl(Exception):  # noqa: N818 - named by what it is
    """An address or a secret that cannot be used. The text is for the user."""


def control_address(text: str) -> ControlAddress:
    """What `text` says: HOST:PORT, [HOST]:PORT or a path with a slash. Raises UnusableControl."""
    if "/" in text:
        return ControlAddress(path=text)
    match = re.fullmatch(r"\[([0-9a-fA-F:.%]+)\]:(\d{1,5})|([^:\s\[\]]+):(\d{1,5})", text)
    if match is None:
        raise UnusableControl(f"'{text}' is neither HOST:PORT nor the path of a Unix socket")
    host, port = match[1] or match[3], int(match[2] or match[4])
    if port > 65_535:
        raise UnusableControl(f"'{text}': there is no port {port}")
    return ControlAddress(host, port)


def read_secret(file: str, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """The secret in `file`, or in the environment; None if neither is given.

    Raises UnusableControl. White space around it does not count: any editor can write it.
    """
    if file:
        try:
            with Path(file).open("rb") as stream:
                secret = stream.read(SECRET_BYTES_MAX + 1).strip()
        except OSError as error:
            raise UnusableControl(f"secret file {file}: {error.strerror}") from None
        where = f"secret file {file}"
    elif SECRET_VARIABLE in environment:
        secret, where = environment[SECRET_VARIABLE].strip().encode(), SECRET_VARIABLE
    else:
        return None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise UnusableControl(
            f"{where}: {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes make a secret; "
            "`openssl rand -hex 32` prints one"
        )
    return secret
