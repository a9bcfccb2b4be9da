"""What encoding gives. Apart from `encoder`, which needs the extra's packages."""

from array import array
from typing import NamedTuple


class Encoded(NamedTuple):
    """Ids as signed 64-bit, and how many of them were remembered."""

    tokens: "array[int]"
    remembered: int
