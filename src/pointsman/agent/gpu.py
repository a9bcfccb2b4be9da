"""Reads what the machine's NVIDIA GPUs say of themselves, by NVML. None stands for what is not
there.

NVML comes with the driver, its Python module with `pip install 'pointsman[gpu]'`. Both are looked
for when an agent starts; without them the agent works just as well.
"""

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import msgspec

_MODULE = "pynvml"

T = TypeVar("T")

log = logging.getLogger(__name__)


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of several GPUs together: the mean shares of time, the temperature of the
    hottest, the sum of what they draw. None means not known, never zero."""

    busy: float | None = None
    memory_busy: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class Gpus:
    """The GPUs with the given indices, or all. Never closed: NVML ends with the process."""

    def __init__(self, nvml: ModuleType, indices: Sequence[int] = ()) -> None:
        """Raises what NVML raises, where it cannot begin."""
        self._nvml = nvml
        nvml.nvmlInit()
        wanted = indices or range(nvml.nvmlDeviceGetCount())
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in wanted]

    def __len__(self) -> int:
        return len(self._devices)

    def read(self) -> GpuReading:
        """Blocks for a few milliseconds, or longer where the driver is busy."""
        nvml = self._nvml
        rates = list(self._each(nvml.nvmlDeviceGetUtilizationRates))
        celsius = nvml.NVML_TEMPERATURE_GPU
        hot = list(self._each(lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, celsius)))
        milliwatts = list(self._each(nvml.nvmlDeviceGetPowerUsage))
        return GpuReading(
            busy=_mean([rate.gpu / 100 for rate in rates]),
            memory_busy=_mean([rate.memory / 100 for rate in rates]),
            temperature_c=float(max(hot)) if hot else None,
            power_w=sum(milliwatts) / 1_000 if milliwatts else None,
        )

    def _each(self, ask: Callable[[Any], T]) -> Iterator[T]:
        """The answers of those GPUs that give one: not every model measures everything."""
        for device in self._devices:
            try:
                yield ask(device)
            except self._nvml.NVMLError:
                continue


def find_gpus(indices: Sequence[int] = ()) -> Gpus | None:
    """The GPUs, or None where NVML or its module is missing, or has none of them."""
    try:
        nvml = importlib.import_module(_MODULE)
    except ImportError:
        if indices:
            log.warning("no GPU signals: pip install nvidia-ml-py")
        return None
    try:
        gpus = Gpus(nvml, indices)
    except nvml.NVMLError as error:
        log.info("no GPU signals: %s", error)
        return None
    return gpus if len(gpus) else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
