"""One data-parallel rank behind an engine's port: its computing, its cache, its KV events.

As in vLLM, ranks share the port, the model and nothing else: each has a scheduler and a cache
of its own, and publishes its events on ports of its own.
"""

import time

from pointsman.engines.compute_model import CacheEvent
from pointsman.engines.simulated.driver import EngineDriver
from pointsman.engines.simulated.kv_events import EventEncoder, EventPublisher
from pointsman.engines.simulated.metrics import EngineStats
from pointsman.engines.simulated.options import EngineOptions


class Rank:
    """Owns driver and statistics; the publisher is closed by whoever made it."""

    def __init__(
        self,
        number: int,
        options: EngineOptions,
        *,
        loras: dict[str, int],
        publisher: EventPublisher | None,
    ) -> None:
        profile = options.compute_profile()
        self.publisher = publisher
        self.stats = EngineStats(profile.context_tokens)
        self.driver = EngineDriver(
            profile,
            speed=options.speed,
            stats=self.stats,
            publish=None if publisher is None else self._publish,
        )
        self._encoder = EventEncoder(
            encoding=options.kv_events_encoding,
            hashes=options.kv_events_hashes,
            block_size=profile.block_size,
            loras=loras,
            rank=number,
        )

    def restart(self) -> None:
        """A new process in the old one's place."""
        self.stats.reset()
        self.driver.restart()
        if self.publisher is not None:
            self.publisher.restart()

    def _publish(self, events: list[CacheEvent]) -> None:
        assert self.publisher is not None
        self.publisher.publish(self._encoder.encode(events, time.time()))
