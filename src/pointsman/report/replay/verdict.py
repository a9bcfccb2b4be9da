"""How one bar of a scenario came out."""

import msgspec


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How one expectation came out. `reference` is None where the bar is absolute, and `value`
    and `ratio` are where they are not known. `policy_named` where it is not the baseline."""

    scenario: str
    policy: str
    measure: str
    bar: str
    kept: bool
    value: float | None
    reference: float | None
    ratio: float | None
    against: str = ""
    policy_named: bool = False
