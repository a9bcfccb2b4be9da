"""Ports for tests: each once, and none that somebody has."""

import socket
from pathlib import Path

import pytest

from tests.support import ports


def test_no_port_is_given_twice_nor_one_that_a_connection_may_get() -> None:
    given = [*ports.free_ports(20), *ports.free_ports(20)]
    assert len(set(given)) == 40
    first_of_connections = int(
        Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    )
    assert max(given) < first_of_connections or first_of_connections < ports.FIRST


def test_a_port_that_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, [free] = server.getsockname()[1], ports.free_ports(1)
        monkeypatch.setattr(ports, "_untried", iter([taken, free]))
        assert ports.free_ports(1) == [free]
