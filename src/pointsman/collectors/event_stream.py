"""Puts one engine's KV events in order: says what to tell the core, and when to ask for a replay.

No sockets. A stream is either live or catching up; while it catches up a replay is read and live
messages wait. It claims EXACT only if it has every message since the engine's start, or since a
clear. What no replay can fill makes it DEGRADED. Until the first message or replay it claims
nothing, and the index goes by our own routing history.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pointsman.collectors.passage import Passage
from pointsman.core.cache_events import AllBlocksCleared, CacheChange
from pointsman.core.events import IndexTrust
from pointsman.telemetry.collector_metrics import NodeTally
from pointsman.wire.engine_events import (
    MalformedEvent,
    Message,
    SequenceTracker,
    SequenceVerdict,
    decode_message,
)

WAITING_MAX = 10_000
WAITING_BYTES_MAX = 16 * 1024 * 1024
"""The most live messages that are kept during a replay, as many as vLLM's own replay buffer has,
and what they may hold: decoded they take ten times as much. What is beyond is dropped, which shows
as a gap."""


class EventStream:
    """The messages of one subscription to one incarnation.

    `changes` gets what happened in the engine's cache, `trust` how far that may be believed; much
    at once comes in slices, and the stream `is_busy` meanwhile. While it `is_live` nothing is
    missing, as far as is known.
    """

    def __init__(
        self,
        tally: NodeTally,
        *,
        is_ours: Callable[[str], bool],
        changes: Callable[[Sequence[CacheChange]], None],
        trust: Callable[[IndexTrust], None],
    ) -> None:
        self.is_live = False
        self.restarts = 0
        self._tally = tally
        self._is_ours = is_ours
        self._passage = Passage(changes, trust)
        self._told = IndexTrust.HISTORY
        self._tracker = SequenceTracker()
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._is_replayed = False  # to its end
        self._lost = False

    @property
    def replay_from(self) -> int | None:
        """The first message that is missing, for a replay to begin with; None while live."""
        return None if self.is_live else self._tracker.expected

    @property
    def is_busy(self) -> bool:
        """Whether what it was given is still being handed on: more has to wait meanwhile."""
        return not self._passage.idle.is_set()

    async def handed_on(self) -> None:
        """Wait until it is not busy."""
        await self._passage.idle.wait()

    def close(self) -> None:
        """Drop what has not been handed on."""
        self._passage.close()

    def live(self, frames: Sequence[bytes]) -> None:
        """Take a message from the subscription."""
        message = self._decode(frames)
        if message is None or message.ends_replay:
            return
        if self.is_live:
            self._take(message)
        elif len(self._waiting) < WAITING_MAX and self._waiting_bytes < WAITING_BYTES_MAX:
            self._waiting.append(message)
            self._waiting_bytes += sum(map(len, frames))
        else:
            self._tally.event_dropped.add()

    def replayed(self, frames: Sequence[bytes]) -> bool:
        """Take an answer to a replay request. Whether more follow."""
        message = self._decode(frames)
        if message is None:
            return True
        if message.ends_replay:
            self._is_replayed = True
            return False
        verdict = self._tracker.feed(message.seq, ts_s=message.batch.ts_s, replayed=True)
        if verdict is SequenceVerdict.FIRST and message.seq > 0:
            self._lose()  # the publisher's memory does not reach back to its start
        if verdict is SequenceVerdict.GAP:
            self._accept_loss(message, replayed=True)
        elif verdict in _TAKEN:
            self._pass_on(message)
        else:
            self._tally.event_duplicates.add()
        return True

    def replay_ended(self) -> None:
        """End the replay, which is complete or has failed: go live with what is there."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        self.is_live = True
        for message in waiting:
            if not self.is_live:  # it restarted amid them
                self._waiting.append(message)
            elif self._take(message, after_replay=True) is SequenceVerdict.GAP:
                self._accept_loss(message, replayed=False)
        is_whole, self._is_replayed = self._is_replayed, False
        if is_whole and self.is_live:  # else the next message tells whether anything is missing
            self._trust(IndexTrust.DEGRADED if self._lost else IndexTrust.EXACT)

    def _decode(self, frames: Sequence[bytes]) -> Message | None:
        try:
            message = decode_message(frames)
        except MalformedEvent:
            self._tally.event_malformed.add()
            return None
        if not message.ends_replay and not self._is_ours(message.topic):
            self._tally.event_foreign.add()
            return None
        return message

    def _take(self, message: Message, *, after_replay: bool = False) -> SequenceVerdict:
        """Take a live message in its turn. One out of turn waits for a replay."""
        first_is_late = self._tracker.expected == 0 and message.seq > 0
        if first_is_late:  # what came before it is not known
            verdict = SequenceVerdict.GAP
        else:
            verdict = self._tracker.feed(message.seq, ts_s=message.batch.ts_s)
        match verdict:
            case SequenceVerdict.FIRST | SequenceVerdict.NEXT:
                self._pass_on(message)
                if not self._lost:
                    self._trust(IndexTrust.EXACT)
            case SequenceVerdict.DUPLICATE:
                self._tally.event_duplicates.add()
            case SequenceVerdict.GAP if not after_replay:
                self._tally.event_gaps.add()
                self._catch_up(message)
            case SequenceVerdict.GAP:
                pass  # a replay was just tried: the caller accepts the loss
            case SequenceVerdict.RESTARTED:
                self.restarts += 1
                self._lost = False
                self._passage.hand_on((AllBlocksCleared(),))
                self._catch_up(message)
        return verdict

    def _catch_up(self, message: Message) -> None:
        self.is_live = False
        self._waiting.append(message)

    def _accept_loss(self, message: Message, *, replayed: bool) -> None:
        self._lose()
        self._tracker.resync(message.seq)
        self._tracker.feed(message.seq, ts_s=message.batch.ts_s, replayed=replayed)
        self._pass_on(message)

    def _lose(self) -> None:
        self._lost = True
        self._tally.event_losses.add()
        self._trust(IndexTrust.DEGRADED)

    def _pass_on(self, message: Message) -> None:
        self._tally.event_messages.add()
        changes = of_first_group(message.batch.events)
        if changes:
            self._passage.hand_on(changes)
        if self._lost and any(isinstance(change, AllBlocksCleared) for change in changes):
            self._lost = False
            self._trust(IndexTrust.EXACT)

    def _trust(self, trust: IndexTrust) -> None:
        if trust is not self._told:
            self._told = trust
            self._passage.hand_on(trust)


_TAKEN = frozenset({SequenceVerdict.FIRST, SequenceVerdict.NEXT})


def of_first_group(events: Iterable[CacheChange]) -> tuple[CacheChange, ...]:
    """The events that tell of the prefix.

    Hybrid models publish a group of blocks for each kind of attention layer, under one hash. The
    first group stands for the prefix; the others would remove it too early.
    """
    return tuple(e for e in events if isinstance(e, AllBlocksCleared) or not e.group_idx)
