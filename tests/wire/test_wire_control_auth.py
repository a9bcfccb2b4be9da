"""Both sides prove that they know the secret, and no proof is good for anything else."""

import pytest

from pointsman.wire.control_auth import Role, prove, proves

SECRET = b"a secret of some length"


def facts(**other: object) -> dict[str, object]:
    return {"challenge": b"c" * 16, "nonce": b"n" * 16, "agent": "a"} | other


def test_who_knows_the_secret_proves_it() -> None:
    proof = prove(SECRET, Role.AGENT, **facts())  # type: ignore[arg-type]  # test keywords
    assert proves(proof, SECRET, Role.AGENT, **facts())  # type: ignore[arg-type]  # test keywords
    assert SECRET not in proof
    assert len(proof) == 32


@pytest.mark.parametrize(
    "other",
    [
        {"challenge": b"d" * 16},  # recorded earlier
        {"nonce": b"m" * 16},
        {"agent": "b"},
        {"challenge": b"c" * 15, "nonce": b"c" + b"n" * 16},  # the same bytes, cut elsewhere
    ],
)
def test_a_proof_is_of_one_handshake(other: dict[str, object]) -> None:
    proof = prove(SECRET, Role.AGENT, **facts())  # type: ignore[arg-type]  # test keywords
    assert not proves(proof, SECRET, Role.AGENT, **facts(**other))  # type: ignore[arg-type]  # test keywords


def test_a_proof_cannot_be_sent_back() -> None:
    proof = prove(SECRET, Role.AGENT, **facts())  # type: ignore[arg-type]  # test keywords
    assert not proves(proof, SECRET, Role.SCHEDULER, **facts())  # type: ignore[arg-type]  # test keywords


@pytest.mark.parametrize("proof", [b"", b"x" * 32])
def test_a_guess_is_none(proof: bytes) -> None:
    assert not proves(proof, SECRET, Role.AGENT, **facts())  # type: ignore[arg-type]  # test keywords
