"""What routing needs of a request body, whichever endpoint it is for."""

from array import array
from typing import Final

from pointsman.core.value import Value


class RoutingFields(Value):
    """What a placement depends on, read from any body. None: the client did not say.

    `prompt_text` are canonical bytes (see `canonical`), `prompt_tokens` ids as signed 64-bit
    (read, never written); of a list of prompts they are the first, and `prompts` counts all.
    `max_output_tokens` is for one choice of one prompt; 0 where nothing is generated.
    """

    __match_args__ = (
        "model",
        "stream",
        "prompt_text",
        "prompt_tokens",
        "prompts",
        "max_output_tokens",
        "n",
        "cache_salt",
        "prompt_cache_key",
        "previous_response_id",
        "service_tier",
        "priority",
        "user",
        "safety_identifier",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        *,
        model: str | None = None,
        stream: bool = False,
        prompt_text: bytes | None = None,
        prompt_tokens: "array[int] | None" = None,
        prompts: int = 1,
        max_output_tokens: int | None = None,
        n: int = 1,
        cache_salt: str | None = None,
        prompt_cache_key: str | None = None,
        previous_response_id: str | None = None,
        service_tier: str | None = None,
        priority: int | None = None,
        user: str | None = None,
        safety_identifier: str | None = None,
    ) -> None:
        self.model: Final = model
        self.stream: Final = stream
        self.prompt_text: Final = prompt_text
        self.prompt_tokens: Final = prompt_tokens
        self.prompts: Final = prompts
        self.max_output_tokens: Final = max_output_tokens
        self.n: Final = n
        self.cache_salt: Final = cache_salt
        self.prompt_cache_key: Final = prompt_cache_key
        self.previous_response_id: Final = previous_response_id
        self.service_tier: Final = service_tier
        self.priority: Final = priority
        self.user: Final = user
        self.safety_identifier: Final = safety_identifier
