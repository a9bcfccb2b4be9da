"""The configuration, read again while running: by SIGHUP, when the file changes, when asked.

A file that cannot be used changes nothing: the last good configuration stays, and the
problems are logged, shown in the state and counted.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from pointsman.cli.config import Config
from pointsman.cli.config_change import Change, differences, in_force, with_names
from pointsman.cli.yaml_reader import Rejected

WATCH_S = 1.0
"""Between looks at the file. A change is taken up when two looks agree, so that an editor
has time to finish writing."""

log = logging.getLogger(__name__)

_Signature = tuple[int, int, int] | None


class Result(StrEnum):
    """What came of a reload."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REJECTED = "rejected"


class Report(msgspec.Struct, frozen=True):
    """One reload. Problems are FILE:LINE:COLUMN: MESSAGE, as `pointsman check` prints them."""

    result: Result
    changes: tuple[Change, ...] = ()
    problems: tuple[str, ...] = ()


class ConfigurationState(msgspec.Struct, frozen=True):
    """Which configuration is in force. `last` is None before the first reload; `problems` are
    the last one's, and what is `pending` waits for a restart. Times are seconds since 1970."""

    file: str | None
    loaded_at_s: float
    last: Result | None
    last_at_s: float | None
    problems: tuple[str, ...]
    pending: tuple[str, ...]
    reloads: dict[str, int]


class Target(Protocol):
    """Who goes by a configuration. `config` is the one in force."""

    config: Config

    def conflicts(self, config: Config) -> list[str]:
        """What speaks against a configuration, beside what its file shows."""
        ...

    async def apply(self, config: Config) -> None:
        """Go by it from here on."""
        ...


class Source:
    """A file, and the way to a configuration from it. `file` is None if there is none."""

    def __init__(self, file: Path | None, load: Callable[[], Config]) -> None:
        self.file = file
        self._load = load
        self._read_signature: _Signature = None

    def read(self) -> Config:
        """Raises Rejected."""
        self._read_signature = self.signature()
        return self._load()

    def is_stale(self, signature: _Signature) -> bool:
        """Whether the file was another one when it was read."""
        return signature != self._read_signature

    def signature(self) -> _Signature:
        """What tells that a file has changed: of the file itself, not of links to it.
        Kubernetes swaps a link to a folder when a ConfigMap changes."""
        try:
            seen = None if self.file is None else self.file.stat()
        except OSError:
            return None
        return None if seen is None else (seen.st_ino, seen.st_mtime_ns, seen.st_size)


class Reloader:
    """One reload at a time, whoever asks for it."""

    def __init__(
        self, source: Source, target: Target, *, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._target = target
        self._wall_s = wall_s
        self._asked = asyncio.Event()
        self._lock = asyncio.Lock()
        self._loaded_at_s = wall_s()
        self._last: Report | None = None
        self._last_at_s: float | None = None
        self._reloads = {str(result): 0 for result in Result}

    async def run(self) -> None:
        """Reload whenever the file has changed, or `ask` was called."""
        before = self._source.signature()
        while True:
            asked, now = await self._wait(), self._source.signature()
            settled, before = now == before, now
            if asked or (settled and self._source.is_stale(now)):
                await self._reload_for(asked or "the file has changed")

    def ask(self, why: str) -> None:
        """Reload soon; for a signal's handler."""
        log.info("%s: reading the configuration again", why)
        self._asked.set()

    async def reload(self, why: str) -> Report:
        """Read the file again and go by it, or leave everything as it is."""
        async with self._lock:
            report = await self._tried()
        self._last, self._last_at_s = report, self._wall_s()
        self._reloads[report.result] += 1
        if report.result is not Result.REJECTED:
            self._loaded_at_s = self._last_at_s
        self._tell(why, report)
        return report

    def state(self) -> ConfigurationState:
        """What is in force, and what came of the last reload."""
        last, file = self._last, self._source.file
        return ConfigurationState(
            file=None if file is None else str(file),
            loaded_at_s=self._loaded_at_s,
            last=None if last is None else last.result,
            last_at_s=self._last_at_s,
            problems=() if last is None else last.problems,
            pending=() if last is None else tuple(str(c) for c in last.changes if c.kept),
            reloads=dict(self._reloads),
        )

    async def _tried(self) -> Report:
        file, target = self._source.file, self._target
        if file is None:
            return _rejected("there is no configuration file: start with -c FILE")
        try:
            read = await asyncio.to_thread(self._source.read)  # long files take a second
        except Rejected as rejected:
            return _rejected(*rejected.lines(file))
        config = with_names(read, target.config.engines)
        if problems := target.conflicts(config):
            return _rejected(*(f"{file}:1:1: {problem}" for problem in problems))
        changes = differences(target.config, config)
        if all(change.kept for change in changes):
            return Report(Result.UNCHANGED, changes)
        await target.apply(in_force(target.config, config))
        return Report(Result.CHANGED, changes)

    async def _wait(self) -> str:
        """Wait until somebody asks, or it is time to look: then what is returned is empty."""
        try:
            async with asyncio.timeout(WATCH_S):
                await self._asked.wait()
        except TimeoutError:
            return ""
        self._asked.clear()
        return "SIGHUP"

    async def _reload_for(self, why: str) -> None:
        try:
            await self.reload(why)
        except Exception:  # the driver's outermost loop: a bug must not end the watch
            log.exception("the configuration could not be reloaded")

    def _tell(self, why: str, report: Report) -> None:
        for problem in report.problems:
            log.error("%s", problem)
        if report.result is Result.REJECTED:
            log.error("configuration not reloaded (%s); the last good one stays", why)
            return
        log.info("configuration reloaded (%s): %s", why, report.result)
        for change in report.changes:
            log.log(logging.WARNING if change.kept else logging.INFO, "  %s", change)


def _rejected(*problems: str) -> Report:
    return Report(Result.REJECTED, problems=problems)
