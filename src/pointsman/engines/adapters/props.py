"""GET /props (llama.cpp): version, slots, and the context length of one."""

import msgspec

from pointsman.decoding import decoded_or_none


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class Props(msgspec.Struct, frozen=True):
    """What routing uses of it. `total_slots` requests run at once; the rest wait inside."""

    default_generation_settings: _Settings | None = None
    total_slots: int | None = None
    build_info: str = ""

    @property
    def context_tokens(self) -> int | None:
        settings = self.default_generation_settings
        return settings.n_ctx if settings else None


_decode = msgspec.json.Decoder(Props, strict=False).decode


def read_props(body: bytes) -> Props | None:
    """The answer's values; None if it is something else."""
    props = decoded_or_none(_decode, body)
    is_such = props is not None and (props.default_generation_settings or props.total_slots)
    return props if is_such else None
