"""Between an engine's KV events and the gateway: passes every message on, but some get lost.

ZMQ drops what its queues cannot hold, and a network what a cut swallows; the publisher does
not learn of it. Only the sequence numbers tell.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import zmq

POLL_MS = 50


class EventRelay:
    """`endpoint` is where to subscribe instead. `lose_next` messages are still to be lost."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], source: str) -> None:
        self.passed = 0
        self.lost = 0
        self.lose_next = 0
        self._stopped = threading.Event()
        self._from = context.socket(zmq.SUB)
        self._from.subscribe(b"")
        self._from.connect(source)
        self._to = context.socket(zmq.PUB)
        port = self._to.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"

    def run(self) -> None:
        """Until stopped, on a thread of its own."""
        sockets: Collection[zmq.Socket[bytes]] = (self._from, self._to)
        while not self._stopped.is_set():
            if self._from.poll(POLL_MS):
                self._pass_on(self._from.recv_multipart())
        for each in sockets:
            each.close(linger=0)

    def _pass_on(self, frames: list[bytes]) -> None:
        if self.lose_next:
            self.lose_next -= 1
            self.lost += 1
        else:
            self.passed += 1
            self._to.send_multipart(frames)

    def stop(self) -> None:
        self._stopped.set()


@contextmanager
def event_relay(source: str) -> Iterator[EventRelay]:
    """A relay of what `source` publishes, while it is needed."""
    with zmq.Context() as context:
        relay = EventRelay(context, source)
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            yield relay
        finally:
            relay.stop()
            thread.join()
