"""Ports for tests: each once, and none that somebody has."""

import socket

import pytest

from tests.support import ports


def test_no_port_is_given_twice() -> None:
    assert len({*ports.free_ports(20), *ports.free_ports(20)}) == 40


def test_a_port_that_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, [free] = server.getsockname()[1], ports.free_ports(1)
        monkeypatch.setattr(ports, "_untried", iter([taken, free]))
        assert ports.free_ports(1) == [free]
