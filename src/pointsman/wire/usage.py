"""What an engine says it processed: the fields, in any of the dialects it says it in."""

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request. `prompt_tokens` includes those served from cache;
    `cached_tokens` is None where the engine does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


class TokenDetails(msgspec.Struct, frozen=True, gc=False):
    """Of a prompt's tokens."""

    cached_tokens: int | None = None


class UsageFields(msgspec.Struct, frozen=True, gc=False):
    """A `usage` object as it is on the wire: OpenAI chat, Responses or Anthropic."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Said(msgspec.Struct, frozen=True, gc=False):
    """What an answer says about itself. `response_id` names it where it is one of the Responses
    API, which engines keep; else it is empty."""

    usage: Usage | None = None
    response_id: str = ""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """An answer that is not streamed."""

    id: object = None
    kind: object = msgspec.field(default=None, name="object")


class CountedReply(Reply, frozen=True, gc=False):
    """One whose usage is as it should be."""

    usage: UsageFields | None = None


decode_reply = msgspec.json.Decoder(Reply).decode
decode_counted = msgspec.json.Decoder(CountedReply).decode
