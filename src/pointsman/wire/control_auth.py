"""Who knows the secret? Both sides of a control connection prove it, and neither sends it.

Each draws a nonce, so that no proof can be used a second time; what is signed names the role,
so that a proof cannot be sent back to who made it. Proofs are HMAC-SHA-256 over the protocol's
version, the role, both nonces and the agent's name.

What follows on the connection is neither signed nor encrypted: where others can write into
the network's connections, a tunnel belongs around it.
"""

import hmac
from enum import StrEnum

from pointsman.wire.control import VERSION

SECRET_BYTES_MIN = 16
"""Shorter ones could be guessed from a recorded handshake."""


class Role(StrEnum):
    """Whose proof it is."""

    AGENT = "agent"
    SCHEDULER = "scheduler"


def prove(secret: bytes, role: Role, *, challenge: bytes, nonce: bytes, agent: str) -> bytes:
    """The proof of `role`: `challenge` is the scheduler's nonce, `nonce` the agent's."""
    parts = (b"pointsman-control", bytes((VERSION,)), role.encode(), challenge, nonce)
    message = b"".join(len(part).to_bytes(2) + part for part in (*parts, agent.encode()))
    return hmac.digest(secret, message, "sha256")


def proves(
    proof: bytes, secret: bytes, role: Role, *, challenge: bytes, nonce: bytes, agent: str
) -> bool:
    """Whether `proof` is that of someone who knows the secret. In constant time."""
    expected = prove(secret, role, challenge=challenge, nonce=nonce, agent=agent)
    return hmac.compare_digest(proof, expected)
