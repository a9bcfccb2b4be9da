"""What an engine says it processed, in any of the dialects it says it in."""

import msgspec

TOKENS_MAX = 1 << 27
"""No request has as many tokens: ten times the longest context. A count beyond is the engine's
mistake, which would spoil every mean and sum that it enters, and be a key's debt for months."""

RESPONSE_ID_MAX = 128
"""Characters of a response's id: they are 40 or so, and are remembered."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request. `prompt_tokens` includes those served from cache;
    `cached_tokens` is None where the engine does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


class _Details(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None


class UsageFields(msgspec.Struct, frozen=True, gc=False):
    """A `usage` object as it is on the wire: OpenAI chat, Responses or Anthropic."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def over(self, earlier: "UsageFields | None") -> "UsageFields":
        """These fields, and the earlier ones where these are silent.

        Anthropic's streams give the input's counts at the start, the output's at the end.
        """
        if earlier is None or self.prompt_tokens is not None:
            return self
        changes = {
            name: getattr(earlier, name)
            for name in self.__struct_fields__
            if getattr(self, name) is None
        }
        return msgspec.structs.replace(self, **changes)

    def usage(self) -> Usage | None:
        """The counts; None while those of the prompt are missing or any cannot be true."""
        found = self._openai() or self._responses_or_anthropic()
        if found is None:
            return None
        cached = found.cached_tokens or 0
        counts = (found.prompt_tokens, found.completion_tokens, cached)
        can_be = min(counts) >= 0 and max(counts) <= TOKENS_MAX and cached <= found.prompt_tokens
        return found if can_be else None

    def _openai(self) -> Usage | None:
        if self.prompt_tokens is None:
            return None
        details = self.prompt_tokens_details
        cached = details.cached_tokens if details else None
        return Usage(self.prompt_tokens, self.completion_tokens or 0, cached)

    def _responses_or_anthropic(self) -> Usage | None:
        if self.input_tokens is None:
            return None
        details = self.input_tokens_details
        if details is not None:
            return Usage(self.input_tokens, self.output_tokens or 0, details.cached_tokens)
        # Anthropic's input_tokens leave out what was read from or written to the cache.
        read, written = self.cache_read_input_tokens, self.cache_creation_input_tokens
        prompt = self.input_tokens + (read or 0) + (written or 0)
        return Usage(prompt, self.output_tokens or 0, read)


class Said(msgspec.Struct, frozen=True, gc=False):
    """What an answer says about itself. `response_id` names it where it is one of the Responses
    API, which engines keep; else it is empty."""

    usage: Usage | None = None
    response_id: str = ""


class _Reply(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    kind: object = msgspec.field(default=None, name="object")

    def said(self, usage: Usage | None) -> Said:
        return Said(usage, response_id(self.id) if self.kind == "response" else "")


class _Counted(_Reply, frozen=True, gc=False):
    usage: UsageFields | None = None


def read_answer(json_body: bytes) -> Said:
    """What an answer that is not streamed says, as far as it can be read."""
    try:
        reply = _decode_counted(json_body)
    except msgspec.ValidationError:
        return _read_uncounted(json_body)
    except (msgspec.DecodeError, RecursionError):
        return Said()
    return reply.said(reply.usage.usage() if reply.usage else None)


def _read_uncounted(json_body: bytes) -> Said:
    """Of one whose usage is not such."""
    try:
        return _decode_reply(json_body).said(None)
    except (msgspec.DecodeError, RecursionError):
        return Said()


def response_id(found: object) -> str:
    """An id that may be kept; empty where there is none."""
    return found if isinstance(found, str) and len(found) <= RESPONSE_ID_MAX else ""


_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_counted = msgspec.json.Decoder(_Counted).decode
