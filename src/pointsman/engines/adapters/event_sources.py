"""GET /kv_event_sources (vLLM): where an engine publishes what its cache holds."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pointsman.core.events import ModelCard
from pointsman.decoding import decoded_or_none


class EventSource(msgspec.Struct, frozen=True):
    """One publisher. `replay_endpoint` None: it has no memory; `topic` None: not known."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str | None = None

    def owns(self, topic: str, served: Iterable[ModelCard]) -> bool:
        """Whether a message under that topic is its own, if its engine has the models `served`.
        Older engines and replays have no topics."""
        if self.topic is not None:
            return topic == self.topic
        name = topic.rpartition("@")[2]
        return topic == "" or (topic.startswith("kv@") and any(c.name == name for c in served))


class _Source(msgspec.Struct, frozen=True):
    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str | None = None


_decode = msgspec.json.Decoder(dict[str, _Source], strict=False).decode


def read_event_sources(body: bytes, host: str, rank: int | None = None) -> tuple[EventSource, ...]:
    """The publishers of one data-parallel rank, or of all, as `host` is reached from here.

    Empty if the body is no such list, or nothing is published over ZMQ.
    """
    sources: Mapping[str, _Source] = decoded_or_none(_decode, body) or {}
    return tuple(
        EventSource(
            reachable(source.endpoint, host),
            reachable(source.replay_endpoint, host) if source.replay_endpoint else None,
            source.topic,
        )
        for number, source in sources.items()
        if (rank is None or number == str(rank))
        if source.enable_kv_cache_events and source.publisher == "zmq" and source.endpoint
    )


def source_at(endpoint: str, published: Sequence[EventSource]) -> EventSource:
    """The publisher there. One that its engine does not tell of is replayed where the first is."""
    known = next((source for source in published if source.endpoint == endpoint), None)
    return known or EventSource(endpoint, published[0].replay_endpoint if published else None)


def reachable(endpoint: str, host: str) -> str:
    """`endpoint` with the engine's own view of "any address" replaced by its host."""
    literal = f"[{host}]" if ":" in host else host
    for anywhere in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - compared, never bound
        if endpoint.startswith(f"tcp://{anywhere}:"):
            return f"tcp://{literal}:{endpoint.rpartition(':')[2]}"
    return endpoint
