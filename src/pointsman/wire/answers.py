"""What an answer says about itself: the tokens that it took, and its name."""

from typing import Final

import msgspec

from pointsman.decoding import decoded_or_none
from pointsman.wire.usage import Reply, Said, Usage, UsageFields, decode_counted, decode_reply

TOKENS_MAX: Final = 1 << 27
"""No request has as many tokens: ten times the longest context. A count beyond is the engine's
mistake, which would spoil every mean and sum that it enters, and be a key's debt for months."""

RESPONSE_ID_MAX: Final = 128
"""Characters of a response's id: they are 40 or so, and are remembered."""


def read_answer(json_body: bytes) -> Said:
    """What an answer that is not streamed says, as far as it can be read."""
    counted = decoded_or_none(decode_counted, json_body)
    if counted is not None:
        return _said(counted, None if counted.usage is None else usage_of(counted.usage))
    reply = decoded_or_none(decode_reply, json_body)  # its usage may not be such
    return Said() if reply is None else _said(reply, None)


def _said(reply: Reply, usage: Usage | None) -> Said:
    return Said(usage, response_id(reply.id) if reply.kind == "response" else "")


def response_id(found: object) -> str:
    """An id that may be kept; empty where there is none."""
    return found if isinstance(found, str) and len(found) <= RESPONSE_ID_MAX else ""


def usage_of(fields: UsageFields) -> Usage | None:
    """The counts; None while those of the prompt are missing or any cannot be true."""
    if fields.prompt_tokens is not None:
        details = fields.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        return _plausible(fields.prompt_tokens, fields.completion_tokens, cached)
    if fields.input_tokens is None:
        return None
    if (details := fields.input_tokens_details) is not None:
        return _plausible(fields.input_tokens, fields.output_tokens, details.cached_tokens)
    # Anthropic's input_tokens leave out what was read from or written to the cache.
    read, written = fields.cache_read_input_tokens, fields.cache_creation_input_tokens
    prompt = fields.input_tokens + (read or 0) + (written or 0)
    return _plausible(prompt, fields.output_tokens, read)


def _plausible(prompt: int, completion: int | None, cached: int | None) -> Usage | None:
    completion = completion or 0
    if not (0 <= prompt <= TOKENS_MAX and 0 <= completion <= TOKENS_MAX):
        return None
    if cached is not None and not 0 <= cached <= prompt:
        return None
    return Usage(prompt, completion, cached)


def over(later: UsageFields, earlier: UsageFields | None) -> UsageFields:
    """The later fields, and the earlier ones where those are silent.

    Anthropic's streams give the input's counts at the start, the output's at the end.
    """
    if earlier is None or later.prompt_tokens is not None:
        return later
    changes = {
        name: getattr(earlier, name)
        for name in later.__struct_fields__
        if getattr(later, name) is None
    }
    return msgspec.structs.replace(later, **changes)
