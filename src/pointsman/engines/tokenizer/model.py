"""One model's tokenizer: a request's body to the token ids that its engines see."""

from typing import TYPE_CHECKING

import msgspec

from pointsman.engines.tokenizer.chat import ChatBody, chat_of, read_body, read_message, read_text
from pointsman.engines.tokenizer.encoded import Encoded
from pointsman.engines.tokenizer.fallback import Fallback, Inexact
from pointsman.wire.endpoints import Endpoint

if TYPE_CHECKING:
    from pointsman.engines.tokenizer.encoder import Encoder
    from pointsman.engines.tokenizer.growing import GrowingChats
    from pointsman.engines.tokenizer.template import ChatTemplate

KNOWN = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
"""Endpoints whose prompts are put together here as engines do it. Responses and Anthropic's
messages are first turned into chats, each engine and version in its own way."""


class Templates(msgspec.Struct, frozen=True):
    """A model's chat template, and the one for requests with tools; with what is remembered of
    each, if it is one that allows that."""

    default: "ChatTemplate"
    tools: "ChatTemplate"
    growing: "dict[ChatTemplate, GrowingChats]"


class ModelTokenizer:
    """Renders and encodes; without `templates` only what needs none. Safe in threads."""

    def __init__(self, encoder: "Encoder", templates: Templates | None) -> None:
        self._encoder = encoder
        self._templates = templates

    def tokens(self, endpoint: Endpoint, body: bytes) -> Encoded:
        """The prompt's token ids. Raises Inexact."""
        match endpoint:
            case Endpoint.COMPLETIONS:
                prompt = read_text(body)
                return self._encoder.encode(prompt.text, special_tokens=prompt.special_tokens)
            case Endpoint.CHAT:
                return self._chat_tokens(read_body(body))
        raise Inexact(Fallback.ENDPOINT)

    def _chat_tokens(self, body: ChatBody) -> Encoded:
        if self._templates is None:
            raise Inexact(Fallback.OPTIONS, "the model has no chat template")
        template = self._templates.default if body.tools is None else self._templates.tools
        growing = self._templates.growing.get(template)
        if growing is not None and (encoded := growing.tokens(body)) is not None:
            return encoded
        messages = [read_message(raw, parts_stay=template.parts_stay) for raw in body.messages]
        chat = chat_of(body, messages, reads=template.reads)
        return self._encoder.encode(template.render(chat), special_tokens=chat.special_tokens)
