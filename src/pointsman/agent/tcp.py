"""Tells what share of TCP segments the machine had to send again: a data path that loses packets
shows here before it shows in latencies. Linux only; None elsewhere, and while nothing is sent."""

from pathlib import Path

SNMP = Path("/proc/net/snmp")

SEGMENTS_MIN = 100
"""With fewer sent since the last look there is no sample: one retransmission among ten says
nothing."""


class Retransmits:
    """The share between two looks. The kernel counts over all connections since boot."""

    def __init__(self, path: Path = SNMP) -> None:
        self._path = path
        self._before: tuple[int, int] | None = None

    def read(self) -> float | None:
        """The share since the last look that had enough to count."""
        now = self._counters()
        before = self._before
        if now is None or before is None:
            self._before = now
            return None
        sent, again = now[0] - before[0], now[1] - before[1]
        if sent < SEGMENTS_MIN:
            return None
        self._before = now
        return min(1.0, max(0.0, again / sent))

    def _counters(self) -> tuple[int, int] | None:
        """The segments sent, and those that were sent again; None where nothing tells."""
        try:
            lines = [line.split() for line in self._path.read_text().splitlines()]
        except OSError:
            return None
        rows = [line[1:] for line in lines if line and line[0] == "Tcp:"]
        if len(rows) != 2:
            return None
        try:
            counts = dict(zip(rows[0], map(int, rows[1]), strict=True))
            return counts["OutSegs"], counts["RetransSegs"]
        except (ValueError, KeyError):
            return None
