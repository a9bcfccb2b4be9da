"""Bytes that others sent, decoded: what they may be is declared, what else they are is one error.

On the way of each answer and each event of a stream, so it is compiled. Pure; imports nothing here.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

Data = TypeVar("Data")  # bytes of any kind
T = TypeVar("T")


class Undecodable(ValueError):  # noqa: N818 - named by what it is
    """The bytes are not what was declared. The text says why, and where."""


def decoded(decode: Callable[[Data], T], data: Data) -> T:
    """What a msgspec decoder's `decode` makes of them. Raises Undecodable, and nothing else."""
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        raise Undecodable(str(error)) from None
    except RecursionError:  # which anybody can bring about
        raise Undecodable("it is nested too deeply") from None


def decoded_or_none(decode: Callable[[Data], T], data: Data) -> T | None:
    """The same; None for what is something else."""
    try:
        return decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
