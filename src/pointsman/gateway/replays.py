"""Real requests replayed to a node before it gets work, with one token to generate each.

Over the gateway's own connections, one after the other, the hottest prefix first. Owns its tasks;
`close` ends them.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Raw

from pointsman.core.blocks import Prompt
from pointsman.core.events import WarmUp
from pointsman.core.ids import NodeId
from pointsman.decoding import Undecodable, decoded
from pointsman.gateway.observer import ReplayResult
from pointsman.gateway.pools import Dial, Pools
from pointsman.gateway.samples import Sample, Samples
from pointsman.gateway.upstream import NodePool, UpstreamConnection

Computed = Callable[[Prompt | None], None]
"""Told of each prompt that a node has computed, and None when it is over, whatever came of it."""

_DROPPED: Final = ("stream", "stream_options", "max_completion_tokens", "best_of")

_UNAUTHORIZED: Final = HTTPStatus.UNAUTHORIZED

log = logging.getLogger(__name__)


class Replays:
    """Warm-ups under way, at most one a node."""

    def __init__(
        self,
        samples: Samples,
        pools: Pools,
        now_s: Callable[[], float],
        replayed: Callable[[ReplayResult], None],
    ) -> None:
        """`replayed` is told what came of each replay."""
        self._samples = samples
        self._pools = pools
        self._now_s = now_s
        self._replayed = replayed
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}

    def begin(self, effect: WarmUp, computed: Computed) -> None:
        """Replay what is kept of its blocks; `computed` hears None exactly once."""
        if effect.node_id in self._tasks:
            computed(None)
            return
        task = asyncio.get_running_loop().create_task(self._warm(effect, computed))
        self._tasks[effect.node_id] = task
        task.add_done_callback(lambda _: self._ended(effect.node_id, computed))

    def _ended(self, node_id: NodeId, computed: Computed) -> None:
        task = self._tasks.pop(node_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a warm-up failed", exc_info=error)
        computed(None)

    async def _warm(self, effect: WarmUp, computed: Computed) -> None:
        refusals: list[int] = []
        try:
            async with asyncio.timeout(effect.within_s):
                await self._replay_all(effect, computed, refusals)
        except TimeoutError:
            self._replayed(ReplayResult.LATE)
            log.warning("the warm-up of %s was not done within %g s", effect.url, effect.within_s)
        if refusals:
            text = "%s refused %d of the requests that were to warm it up, the last with %d%s"
            hint = ": give its key, engines[].api_key" if refusals[-1] == _UNAUTHORIZED else ""
            log.warning(text, effect.url, len(refusals), refusals[-1], hint)

    async def _replay_all(self, effect: WarmUp, computed: Computed, refusals: list[int]) -> None:
        """What is answered with another status than 200 is added to `refusals`."""
        pool = self._pools.node(effect.node_id, effect.url)
        for sample in filter(None, map(self._samples.get, effect.blocks)):
            status = await self._replay(pool, sample)
            self._replayed(_result(status))
            if status == HTTPStatus.OK:
                computed(sample.prompt)
            elif status:
                refusals.append(status)

    async def _replay(self, pool: NodePool, sample: Sample) -> int:
        """The status that is answered; 0 if there is no answer."""
        try:
            replay = _Replay(pool, sample, self._now_s)
        except Undecodable:  # a field's name that is none
            return HTTPStatus.BAD_REQUEST
        try:
            upstream = pool.take(self._now_s())
            if upstream is None:
                replay.dial = self._pools.dial(pool, replay)
            else:
                replay.dialled(upstream)
            return await replay.done
        finally:
            replay.drop()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Replay:
    """One request to one node: the `Caller` of its connection."""

    dial: Dial | None = None
    _upstream: UpstreamConnection | None = None

    def __init__(self, pool: NodePool, sample: Sample, now_s: Callable[[], float]) -> None:
        """Raises Undecodable."""
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pool = pool
        self._target, self._body = sample.target, shortened(sample.body)
        self._now_s = now_s

    def dialled(self, upstream: UpstreamConnection) -> None:
        self.dial, self._upstream = None, upstream
        pool, body = self._pool, self._body
        head = (
            b"POST %b HTTP/1.1\r\n" % self._target,
            pool.own_lines,
            pool.key_line,
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body),
        )
        upstream.send(self, b"".join(head), body)

    def unreachable(self, *, is_ours: bool) -> None:
        self._end()

    def reply_progressed(self, upstream: UpstreamConnection) -> None:
        upstream.take()
        if upstream.complete:
            self._upstream = None
            status = upstream.status
            upstream.release(self._now_s())
            self._end(status)

    def reply_lost(self, upstream: UpstreamConnection, *, is_http: bool) -> None:
        self._upstream = None
        self._end()

    def crashed(self) -> None:
        self._end()

    def drop(self) -> None:
        """Nobody waits any more."""
        if self.dial is not None:
            self.dial.cancel()
        if self._upstream is not None:
            self._upstream.abort()

    def _end(self, status: int = 0) -> None:
        if not self.done.done():
            self.done.set_result(status)


def _result(status: int) -> ReplayResult:
    if status == HTTPStatus.OK:
        return ReplayResult.COMPUTED
    return ReplayResult.REFUSED if status else ReplayResult.LOST


def shortened(body: bytes) -> bytes:
    """The same request for one token, in one piece; all else as it stands, since what is kept was
    read for the routing's fields only. Raises Undecodable."""
    fields = decoded(msgspec.json.Decoder(dict[str, Raw]).decode, body)
    for name in _DROPPED:
        fields.pop(name, None)
    return msgspec.json.encode({**fields, "max_tokens": 1, "n": 1})
