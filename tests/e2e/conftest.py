"""The whole product over real sockets, on uvloop as in production."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As in production."""
    return {"uvloop": uvloop.new_event_loop}
