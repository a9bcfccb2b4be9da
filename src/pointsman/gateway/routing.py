"""From a client's head and body to what the scheduler is asked."""

import zlib
from array import array
from collections.abc import Mapping
from typing import Final

from xxhash import xxh3_128_hexdigest

from pointsman.core.blocks import Prompt
from pointsman.core.errors import Reason
from pointsman.core.ids import ModelName, RequestId
from pointsman.core.limits import MODEL_CHARS_MAX, PRIORITY_NORMAL
from pointsman.core.request import Request
from pointsman.core.scheme import Namespace
from pointsman.gateway.heads import RequestHead
from pointsman.wire.answers import response_id
from pointsman.wire.endpoints import Endpoint
from pointsman.wire.multipart import UnclearForm, read_multipart_model
from pointsman.wire.openai import BadRequest, read_request
from pointsman.wire.priority import (
    ENGINES_HEADER,
    PRIORITY_HEADER,
    body_priority,
    clamped,
    read_engines_priority,
    read_priority,
)
from pointsman.wire.routing_fields import RoutingFields

_ENGINES_PRIORITY_LINE: Final = b"%b: %%d\r\n" % ENGINES_HEADER.encode()
_PRIORITY_LINE: Final = b"%b: %%d\r\n" % PRIORITY_HEADER.encode()
_PLAIN: Final = (b"", b"identity")
_DEFLATED: Final = (b"gzip", b"x-gzip", b"deflate")
_WITH_FORMS: Final = (Endpoint.AUDIO, Endpoint.OTHER)
_HINT_CHARS_MAX: Final = 256
_SLO_TTFT_MS_MAX: Final = 3_600_000.0
_AT_ONCE_PACKED_BYTES_MAX: Final = 64 * 1024
_AT_ONCE_BYTES_MAX: Final = 256 * 1024


class RequestRefused(Exception):  # noqa: N818 - named by whose fault it is
    """The scheduler is never asked: the body cannot be decoded, another one runs under its
    Idempotency-Key, the response that it goes on from is not there, or its API key does not let it
    in. `wait_s` is when to come again, with jitter; None leaves that to the reason."""

    def __init__(self, reason: Reason, detail: str = "", *, wait_s: float | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.wait_s = wait_s


def can_decode(encoding: bytes) -> bool:
    """Whether it is a content encoding that is known here."""
    return encoding in _PLAIN or encoding in _DEFLATED


def decoded_at_once(encoding: bytes, body: bytes, bytes_max: int) -> bytes | None:
    """The body without its content encoding; None where that is more than a millisecond's work,
    which is `inflated`'s. Raises RequestRefused."""
    if not can_decode(encoding):
        raise RequestRefused(Reason.ENCODING_UNSUPPORTED)
    if encoding in _PLAIN:
        return body
    if len(body) > _AT_ONCE_PACKED_BYTES_MAX:
        return None
    return _inflated(body, min(bytes_max, _AT_ONCE_BYTES_MAX))


def inflated(body: bytes, bytes_max: int) -> bytes:
    """The body of a zlib encoding. Raises RequestRefused. To be called in a thread: zlib lets the
    interpreter's others run meanwhile."""
    data = _inflated(body, bytes_max)
    if data is None:
        detail = f"The decoded body is larger than {bytes_max} bytes."
        raise RequestRefused(Reason.BODY_TOO_LARGE, detail)
    return data


def _inflated(body: bytes, bytes_max: int) -> bytes | None:
    """None if it is larger: it stops there, so a small body cannot blow up to a large one."""
    inflater = zlib.decompressobj(wbits=47)  # zlib or gzip, told apart by their heads
    try:
        data = inflater.decompress(body, bytes_max + 1)
    except zlib.error:
        detail = "The body does not decode as its encoding."
        raise RequestRefused(Reason.BAD_REQUEST, detail) from None
    if len(data) > bytes_max:
        return None
    if not inflater.eof or inflater.unused_data:
        raise RequestRefused(Reason.BAD_REQUEST, "The compressed body is cut short or has a tail.")
    return data


def routing_fields(endpoint: Endpoint, head: RequestHead, body: bytes) -> RoutingFields:
    """What placement depends on. Raises BadRequest."""
    is_form = head.content_type[:19].lower() == b"multipart/form-data"
    if is_form and endpoint in _WITH_FORMS:  # elsewhere an engine may read JSON all the same
        fields = RoutingFields(model=_form_model(head.content_type.decode("latin-1"), body))
    else:
        fields = read_request(endpoint, body)
    if fields.model is not None and len(fields.model) > MODEL_CHARS_MAX:
        message = f"'model' is longer than {MODEL_CHARS_MAX} characters. Send a model's name."
        raise BadRequest(message, "model", "invalid_value")
    return fields


def _form_model(content_type: str, body: bytes) -> str | None:
    try:
        return read_multipart_model(content_type, body)
    except UnclearForm as unclear:
        message = f"The form cannot be read for certain: {unclear}. Send each field once."
        raise BadRequest(message, "model", "invalid_value") from None


def core_request(
    request_id: RequestId,
    fields: RoutingFields,
    head: RequestHead,
    *,
    client: str = "",
    is_crowd: bool = False,
) -> Request:
    """The scheduler's view of a request. Raises BadRequest for a malformed hint.

    Headers win over body fields that mean the same: who sets a header knows of this gateway.
    """
    model = ModelName(fields.model or "")
    prompt = Prompt(
        Namespace(model, _key(fields.cache_salt) or ""),
        text=fields.prompt_text or b"",
        tokens=fields.prompt_tokens,
    )
    hints = _NO_HINTS if head.hints is None else _Hints(head.hints)
    priority = _engines_priority(fields, head) if hints.priority is None else hints.priority
    return Request(
        id=request_id,
        model=model,
        prompt=prompt,
        max_output_tokens=_output_tokens(fields),
        stream=fields.stream,
        priority=priority,
        tenant=hints.tenant or _tenant(fields),
        session=hints.session or _session(fields),
        pool=hints.pool,
        zone=hints.zone,
        labels=hints.labels,
        slo_ttft_s=hints.slo_ttft_s,
        client=client,
        is_crowd=is_crowd,
        continues=_continues(fields),
    )


def priority_lines(priority: int, fields: RoutingFields, head: RequestHead) -> bytes:
    """What engines, and fronts before them, are told of a request's priority, where its body
    says another: bodies go on as they are."""
    is_named = fields.priority is not None or bool(fields.service_tier or head.engines_priority)
    if priority == PRIORITY_NORMAL and not is_named:
        return b""  # as most
    asked, lines = _engines_asked(head), b""
    if asked is not None and clamped(-asked) == priority:
        lines = _ENGINES_PRIORITY_LINE % asked  # which may be finer than what is clamped
    elif clamped(-(fields.priority or 0)) != priority:
        lines = _ENGINES_PRIORITY_LINE % -priority
    if body_priority(fields.priority, fields.service_tier) != priority:
        lines += _PRIORITY_LINE % priority
    return lines


def with_tokens(request: Request, tokens: "array[int]") -> Request:
    """The request, its prompt known as token ids, too."""
    prompt = request.prompt
    prompt = Prompt(prompt.namespace, text=prompt.text, tokens=tokens)
    return request.but(prompt=prompt)


def known_by_prompt(request: Request) -> Request:
    """The request of a client without key and address: who says the same is taken for it."""
    return request.but(client=f"prompt:{request.prompt.fingerprint():x}")


def _output_tokens(fields: RoutingFields) -> int | None:
    """Over all choices of all prompts: that is what the node has to generate."""
    limit = fields.max_output_tokens
    return None if limit is None else limit * fields.n * fields.prompts


def _tenant(fields: RoutingFields) -> str:
    return _key(fields.safety_identifier or fields.user) or ""


def _session(fields: RoutingFields) -> str | None:
    return _key(fields.prompt_cache_key or fields.previous_response_id)


def _continues(fields: RoutingFields) -> str:
    return response_id(fields.previous_response_id)


def _key(text: str | None) -> str | None:
    """The text, or its digest if it is long: caches and statistics keep keys when the request
    is over."""
    if text is None or len(text) <= _HINT_CHARS_MAX:
        return text
    return xxh3_128_hexdigest(text.encode())


def _engines_priority(fields: RoutingFields, head: RequestHead) -> int:
    """As vLLM would take it, were nothing else said."""
    asked = _engines_asked(head)
    if asked is not None:
        return clamped(-asked)
    return body_priority(fields.priority, fields.service_tier)


def _engines_asked(head: RequestHead) -> int | None:
    value = head.engines_priority
    return read_engines_priority(value.decode("latin-1")) if value else None


class _Hints:
    """What the x-pointsman-* fields say; None, or no labels, where they say nothing. Raises
    BadRequest for one that is malformed."""

    def __init__(self, given: Mapping[bytes, bytes]) -> None:
        self.priority = _priority(_hint(given, "priority"))
        self.tenant = _hint(given, "tenant")
        self.session = _hint(given, "session")
        self.pool = _hint(given, "pool")
        self.zone = _hint(given, "zone")
        self.labels = _labels(_hint(given, "labels"))
        self.slo_ttft_s = _slo_ttft_s(_hint(given, "slo-ttft-ms"))


def _hint(given: Mapping[bytes, bytes], name: str) -> str | None:
    value = given.get(name.encode(), b"").strip()
    if len(value) > _HINT_CHARS_MAX:
        raise _bad_hint(name, f"at most {_HINT_CHARS_MAX} characters")
    return value.decode("latin-1") or None


def _priority(value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return read_priority(value)
    except ValueError:
        raise _bad_hint("priority", "high, normal, low or an integer") from None


def _labels(value: str | None) -> tuple[tuple[str, str], ...]:
    """`gpu=h100, tier=gold`: what the engine must be labelled with."""
    if value is None:
        return ()
    pairs = [pair.partition("=") for pair in value.split(",")]
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise _bad_hint("labels", "KEY=VALUE[,KEY=VALUE...]")
    return tuple((key.strip(), text.strip()) for key, _, text in pairs)


def _slo_ttft_s(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        slo_ttft_ms = float(value)
    except ValueError:
        slo_ttft_ms = -1.0
    if not 0.0 < slo_ttft_ms <= _SLO_TTFT_MS_MAX:
        raise _bad_hint("slo-ttft-ms", "milliseconds, above 0 and at most an hour")
    return slo_ttft_ms / 1_000.0


def _bad_hint(name: str, wanted: str) -> BadRequest:
    header = f"x-pointsman-{name}"
    return BadRequest(f"Invalid value for the header {header}. Send {wanted}.", header)


_NO_HINTS: Final = _Hints({})
