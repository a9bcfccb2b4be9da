"""Engines are run on both loops: asyncio's own, and uvloop as in production."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
