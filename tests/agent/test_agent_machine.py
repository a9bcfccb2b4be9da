"""GPU and network signals: what is not known is None, never zero. No GPU is needed here."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pointsman.agent import gpu
from pointsman.agent.gpu import GpuReading, find_gpus
from pointsman.agent.machine import Machine
from pointsman.agent.tcp import SEGMENTS_MIN, Retransmits
from pointsman.core.events import NodeSignals


async def test_what_the_machine_tells_is_an_addition(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver's module that raises what it does not say must end no engine."""
    machine = Machine(None, Retransmits())
    monkeypatch.setattr(machine, "read", lambda: 1 / 0)
    await machine.watch([])
    assert "are not looked at any more" in caplog.text


HUNG_DRIVER = """
import asyncio, threading
from types import SimpleNamespace
from pointsman.agent.machine import Machine
from pointsman.agent.tcp import Retransmits

def hang():
    asked.set()
    threading.Event().wait()

async def main():
    machine = Machine(SimpleNamespace(read=hang), Retransmits())
    watching = asyncio.create_task(machine.watch([]))
    while not asked.is_set():
        await asyncio.sleep(0.01)
    watching.cancel()

asked = threading.Event()
asyncio.run(main())
"""


def test_a_driver_that_hangs_keeps_no_agent_from_ending() -> None:
    subprocess.run([sys.executable, "-c", HUNG_DRIVER], check=True, timeout=60)


class FakeNvml(ModuleType):
    """As pynvml: two GPUs; `unsupported` are the questions that the second cannot answer."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, count: int = 2, *, loaded: bool = True, unsupported: str = "") -> None:
        super().__init__("pynvml")
        self.count = count
        self.loaded = loaded
        self.unsupported = unsupported

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if not self.loaded:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - NVML's name
        if index >= self.count:
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802 - NVML's name
        self._check("rates", device)
        return SimpleNamespace(gpu=90 + 10 * device, memory=40)

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> int:  # noqa: N802 - NVML's name
        self._check("temperature", device)
        return 60 + 10 * device

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802 - NVML's name
        self._check("power", device)
        return 300_500

    def _check(self, what: str, device: int) -> None:
        if what in self.unsupported and device == self.count - 1:
            raise self.NVMLError("Not Supported")


def found(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, indices: tuple[int, ...] = ()
) -> gpu.Gpus | None:
    monkeypatch.setattr(gpu.importlib, "import_module", lambda _: nvml)  # type: ignore[attr-defined]  # the seam
    return find_gpus(indices)


def test_gpus_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = found(monkeypatch, FakeNvml())
    assert gpus is not None
    assert gpus.read() == GpuReading(busy=0.95, memory_busy=0.4, temperature_c=70.0, power_w=601.0)
    one = found(monkeypatch, FakeNvml(), (0,))
    assert one is not None
    assert one.read() == GpuReading(busy=0.9, memory_busy=0.4, temperature_c=60.0, power_w=300.5)


def test_what_a_gpu_does_not_measure_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = found(monkeypatch, FakeNvml(unsupported="power temperature"))
    assert gpus is not None
    assert gpus.read() == GpuReading(busy=0.95, memory_busy=0.4, temperature_c=60.0, power_w=300.5)
    gpus = found(monkeypatch, FakeNvml(count=1, unsupported="power rates"))
    assert gpus is not None
    assert gpus.read() == GpuReading(temperature_c=60.0)


@pytest.mark.parametrize(
    "nvml", [FakeNvml(loaded=False), FakeNvml(count=0)], ids=["no driver", "no GPU"]
)
def test_a_machine_without_gpus_has_no_signals(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml
) -> None:
    assert found(monkeypatch, nvml) is None


def test_a_machine_without_the_module_has_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_MODULE", "no_such_module")
    assert find_gpus() is None


def snmp(path: Path, sent: int, again: int) -> None:
    path.write_text(
        "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
        f"Tcp: RtoMin InSegs OutSegs RetransSegs\nTcp: 200 1 {sent} {again}\n"
    )


def test_retransmissions_are_a_share_of_what_was_sent_since(tmp_path: Path) -> None:
    path = tmp_path / "snmp"
    snmp(path, 10_000, 50)
    retransmits = Retransmits(path)
    assert retransmits.read() is None, "since when?"
    snmp(path, 10_200, 60)
    assert retransmits.read() == 0.05
    snmp(path, 10_200 + SEGMENTS_MIN - 1, 60)
    assert retransmits.read() is None, "too few to tell"
    snmp(path, 10_400, 70)
    assert retransmits.read() == 0.05, "and none of them is lost"


@pytest.mark.parametrize(
    "text", ["", "Tcp: OutSegs\n", "Tcp: OutSegs\nTcp: x\n", "Tcp: A\nTcp: 1\n"]
)
def test_what_cannot_be_read_is_not_known(tmp_path: Path, text: str) -> None:
    path = tmp_path / "snmp"
    path.write_text(text)
    assert Retransmits(path).read() is None
    assert Retransmits(tmp_path / "absent").read() is None


def test_a_machine_without_either_says_nothing(tmp_path: Path) -> None:
    assert Machine(None, Retransmits(tmp_path / "absent")).read() == NodeSignals()
