"""Whose request it is: a key, the peer, or whom a trusted proxy names."""

import msgspec
import pytest

from pointsman.core.admission.key_rules import KeyRules
from pointsman.gateway import ApiKey, GatewayOptions, key_digest
from pointsman.gateway.forwarded import HOPS_MAX, client_address
from tests.gateway.conftest import rig
from tests.support.upstreams import answer_ok, post

PROXIES = ("10.0.0.0/8", "192.0.2.1", "fd00::/8")
OPTIONS = GatewayOptions(sweep_s=0.02)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.1.2.3", b"203.0.113.9", "203.0.113.9"),
        ("10.1.2.3", b"203.0.113.9, 10.9.9.9", "203.0.113.9"),
        ("10.1.2.3", b"1.1.1.1, 203.0.113.9", "203.0.113.9"),  # the first is the client's own word
        ("192.0.2.1", b" 203.0.113.9 ", "203.0.113.9"),
        ("192.0.2.2", b"203.0.113.9", "192.0.2.2"),  # anybody can say that
        ("10.1.2.3", b"", "10.1.2.3"),
        ("10.1.2.3", b"unknown", "10.1.2.3"),
        ("10.1.2.3", b"203.0.113.9, unknown", "10.1.2.3"),
        ("10.1.2.3", b"10.4.4.4", "10.4.4.4"),  # a client that is inside itself
        ("10.1.2.3", b"203.0.113.9:4711", "203.0.113.9"),
        ("10.1.2.3", b"[2001:db8::7]:4711", "2001:db8::7"),
        ("fd00::1", b"2001:db8::7", "2001:db8::7"),
        ("::ffff:10.1.2.3", b"::ffff:203.0.113.9", "203.0.113.9"),
        ("fd00::1%eth0", b"fd00::2%" + b"x" * 5_000, "fd00::2"),
        ("10.1.2.3", b"203.0.113.9" + b", 10.9.9.9" * (HOPS_MAX - 1), "203.0.113.9"),
        ("10.1.2.3", b"203.0.113.9" + b", 10.9.9.9" * 5_000, "10.9.9.9"),  # nobody's way
        ("", b"203.0.113.9", ""),
    ],
)
def test_a_list_is_believed_from_its_end_as_far_as_proxies_are_trusted(
    peer: str, forwarded: bytes, client: str
) -> None:
    assert client_address(peer, forwarded, PROXIES) == client
    assert client_address(peer, forwarded, ()) == peer


async def test_a_trusted_proxy_names_the_client_and_engines_are_told_the_list() -> None:
    options = msgspec.structs.replace(OPTIONS, trusted_proxies=("127.0.0.1",))
    lines = ("X-Forwarded-For: 203.0.113.9", "x-forwarded-for: 198.51.100.7")
    async with rig(answer_ok, options=options) as it:
        await it.ask(post("/v1/completions", b'{"model":"m","prompt":"x"}', *lines))
        request = it.placer.order[0].request
        assert request.client == "address:198.51.100.7"
        assert request.is_crowd
        head = it.engine.served[0].head.lower()
        assert head.count(b"x-forwarded-for: ") == 2


async def test_who_trusts_nobody_goes_by_the_peer() -> None:
    async with rig(answer_ok) as it:
        lines = ("X-Forwarded-For: 203.0.113.9",)
        await it.ask(post("/v1/completions", b'{"model":"m","prompt":"x"}', *lines))
        assert it.placer.order[0].request.client == "address:127.0.0.1"


@pytest.mark.parametrize("names_tenants", [True, False])
async def test_a_key_answers_for_all_that_it_sends_unless_it_is_a_gateways(
    names_tenants: bool,
) -> None:
    rules = KeyRules(name="team", names_tenants=names_tenants)
    options = msgspec.structs.replace(OPTIONS, keys=(ApiKey(key_digest(b"k"), rules),))
    async with rig(answer_ok, options=options) as it:
        body = b'{"model":"m","prompt":"x"}'
        await it.ask(post("/v1/completions", body, "Authorization: Bearer k"))
        request = it.placer.order[0].request
        assert (request.client, request.is_crowd) == ("key:team", names_tenants)
