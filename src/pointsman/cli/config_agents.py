"""Node agents in the configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.cli.config_bounds import Seconds
from pointsman.control.listed import FORGET_S


class Agents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Node agents: processes beside the engines, which tell what is asked for without them."""

    listen: Annotated[
        str,
        Meta(
            description="Where agents connect: HOST:PORT, or the path of a Unix socket; empty is "
            "nowhere. Agents may add engines, so any address but this machine's own needs a "
            "secret."
        ),
    ] = ""
    secret_file: Annotated[
        str,
        Meta(
            description="A file with a secret that the agents have, too; each side proves that it "
            "knows it. `openssl rand -hex 32` prints one. Default: the environment's "
            "POINTSMAN_AGENT_SECRET, else none."
        ),
    ] = ""
    forget_s: Annotated[
        Seconds,
        Meta(
            description="Seconds after which an engine that an agent has added is dropped, if no "
            "agent tells of it and it does not answer. Shorter forgets sooner what was scaled "
            "away, longer waits for machines that are only cut off. Engines of this file stay."
        ),
    ] = FORGET_S
