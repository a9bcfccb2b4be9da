"""The fields of request bodies that routing needs, endpoint by endpoint.

The decoder skips all others without building them. Values are taken as leniently as the engines
take them (`"10"` and `10.0` are integers, `1` is true), so that nothing is refused here that an
engine would serve.
"""

from typing import Any

import msgspec
from msgspec import Raw

from pointsman.wire.messages import ABSENT, Content, Message


class Body(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What every endpoint's body may have."""

    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    user: str | None = None
    safety_identifier: str | None = None


class ChatBody(Body, frozen=True, gc=False, kw_only=True):
    messages: list[Message]
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    documents: Raw = ABSENT
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None


class Metadata(msgspec.Struct, frozen=True, gc=False):
    user_id: str | None = None


class MessagesBody(Body, frozen=True, gc=False, kw_only=True):
    messages: list[Message]
    system: Content = None
    tools: Raw = ABSENT
    max_tokens: int | None = None
    metadata: Metadata | None = None


class ResponsesBody(Body, frozen=True, gc=False, kw_only=True):
    input: Content = None
    instructions: Content = None
    tools: Raw = ABSENT
    max_output_tokens: int | None = None
    previous_response_id: str | None = None


PromptField = str | list[int | str | list[int] | dict[str, Any]] | None


class CompletionsBody(Body, frozen=True, gc=False, kw_only=True):
    prompt: PromptField = None
    max_tokens: int | None = None
    n_predict: int | None = None  # llama.cpp's /completion
    n: int | None = None


class SamplingParams(msgspec.Struct, frozen=True, gc=False):
    max_tokens: int | None = None
    max_new_tokens: int | None = None  # SGLang's
    n: int | None = None


class GenerateBody(Body, frozen=True, gc=False, kw_only=True):
    token_ids: PromptField = None
    input_ids: PromptField = None  # SGLang's
    text: PromptField = None
    sampling_params: SamplingParams | list[SamplingParams] | None = None

    @property
    def sampling(self) -> SamplingParams:
        """Of the first prompt: SGLang takes a list, one for each, or nothing."""
        params = self.sampling_params
        first = (params[0] if params else None) if isinstance(params, list) else params
        return first or SamplingParams()


class PoolingBody(Body, frozen=True, gc=False, kw_only=True):
    input: PromptField = None
    content: PromptField = None  # llama.cpp's /embedding
    messages: list[Message] | None = None


class TokenizeBody(Body, frozen=True, gc=False, kw_only=True):
    prompt: PromptField = None
    content: PromptField = None  # llama.cpp's
    messages: list[Message] | None = None
    system: Content = None
    tools: Raw = ABSENT


class RerankBody(Body, frozen=True, gc=False, kw_only=True):
    query: Raw = ABSENT
    documents: list[Raw] | None = None


class ScoreBody(Body, frozen=True, gc=False, kw_only=True):
    text_1: Content = None
    text_2: Content = None
    queries: Content = None
    documents: Content = None
    items: Content = None
    data_1: Content = None
    data_2: Content = None


decode_chat = msgspec.json.Decoder(ChatBody, strict=False).decode
decode_messages = msgspec.json.Decoder(MessagesBody, strict=False).decode
decode_responses = msgspec.json.Decoder(ResponsesBody, strict=False).decode
decode_completions = msgspec.json.Decoder(CompletionsBody, strict=False).decode
decode_generate = msgspec.json.Decoder(GenerateBody, strict=False).decode
decode_pooling = msgspec.json.Decoder(PoolingBody, strict=False).decode
decode_tokenize = msgspec.json.Decoder(TokenizeBody, strict=False).decode
decode_rerank = msgspec.json.Decoder(RerankBody, strict=False).decode
decode_score = msgspec.json.Decoder(ScoreBody, strict=False).decode
decode_other = msgspec.json.Decoder(Body, strict=False).decode
