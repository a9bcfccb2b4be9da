"""A dry run reads a request as the gateway does."""

from codecs import BOM_UTF8

import pytest

from pointsman.gateway.dry_run import would_ask

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":9}'


async def test_a_dry_run_reads_body_and_hints() -> None:
    headers = {"x-pointsman-pool": "long", "x-pointsman-priority": "high"}
    request = await would_ask(CHAT, headers, BODY)
    assert (request.model, request.max_output_tokens) == ("m", 9)
    assert (request.pool, request.priority) == ("long", 10)
    assert b"hello" in request.prompt.text


async def test_a_dry_run_passes_over_a_byte_order_mark_as_the_gateway_does() -> None:
    assert (await would_ask(CHAT, {}, BOM_UTF8 + BODY)).model == "m"


@pytest.mark.parametrize(
    ("path", "headers", "body", "message"),
    [
        ("/v1/nope", {}, BODY, "'/v1/nope' is no inference route"),
        (CHAT, {}, b"{", "not valid JSON"),
        (CHAT, {}, b'{"model":"m"}', "Missing required parameter: 'messages'"),
        (CHAT, {"x-pointsman-priority": "urgent"}, BODY, "x-pointsman-priority"),
        (CHAT, {"content-length": "nine"}, BODY, "content-length is no whole number. Leave it out"),
    ],
)
async def test_what_cannot_be_read_is_named(
    path: str, headers: dict[str, str], body: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await would_ask(path, headers, body)
