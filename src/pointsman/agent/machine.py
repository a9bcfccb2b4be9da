"""Tells what the machine says beside its engines: GPUs and network, looked at now and then."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread

from pointsman.agent.gpu import Gpus
from pointsman.agent.report import EngineReport
from pointsman.agent.tcp import Retransmits
from pointsman.core.events import NodeSignals

INTERVAL_S = 1.0
"""How often the machine is looked at: NVML's own samples cover up to a second."""

log = logging.getLogger(__name__)


class Machine:
    """One machine. It tells all reports the same, since nobody here knows which engine uses which
    GPU."""

    def __init__(self, gpus: Gpus | None, retransmits: Retransmits) -> None:
        self._gpus = gpus
        self._retransmits = retransmits

    async def watch(self, reports: Sequence[EngineReport]) -> None:
        """Look until cancelled, or until a look has failed: what it tells is an addition."""
        while (signals := await self._look()) is not None:
            for report in reports:
                report.observe(signals)
            await asyncio.sleep(INTERVAL_S)

    async def _look(self) -> NodeSignals | None:
        """Look in a thread, since a driver may take its time; in one that nobody waits for at the
        end, as for `asyncio.to_thread`'s, since it may take for ever."""
        looked: Future[NodeSignals | None] = Future()
        looked.set_running_or_notify_cancel()  # the thread goes on when its caller is cancelled
        Thread(target=lambda: looked.set_result(self._read()), daemon=True).start()
        return await asyncio.wrap_future(looked)

    def _read(self) -> NodeSignals | None:
        try:
            return self.read()
        except Exception:  # the thread's outermost frame
            log.exception("the machine's GPUs and network are not looked at any more")
            return None

    def read(self) -> NodeSignals:
        """What is known at this moment."""
        gpu = None if self._gpus is None else self._gpus.read()
        return NodeSignals(
            gpu_busy=None if gpu is None else gpu.busy,
            gpu_memory_busy=None if gpu is None else gpu.memory_busy,
            gpu_temperature_c=None if gpu is None else gpu.temperature_c,
            gpu_power_w=None if gpu is None else gpu.power_w,
            retransmit_ratio=self._retransmits.read(),
        )
