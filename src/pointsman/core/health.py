"""How a node is: the states of one incarnation, and the steps between them.

`TRANSITIONS` is the whole machine, and docs/health.md draws it from there. `condition` takes the
steps for one node, and `judge` those that need a look at other nodes. Draining is no state: it is
what the operator wants of a node, whatever its health.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec


class Health(StrEnum):
    """How a node is. A state says what work it may be given."""

    JOINING = "joining"  # none: it has not described itself yet
    WARMING = "warming"  # a growing share: it is new, or has returned
    READY = "ready"  # all
    SUSPECT = "suspect"  # a lowered share: something speaks against it; none while nothing comes
    OPEN = "open"  # none: the circuit to it is broken for a while
    HALF_OPEN = "half_open"  # one request at a time, of low priority first, which decides
    GONE = "gone"  # none any more


SERVING = frozenset({Health.WARMING, Health.READY, Health.SUSPECT, Health.HALF_OPEN})


WATCHED = frozenset({Health.SUSPECT, Health.OPEN, Health.HALF_OPEN})
"""Looked at often: whatever was the matter may be over."""


class Step(StrEnum):
    """What moves a node on."""

    RISE = "rise"
    WARM = "warm"
    SUSPECT = "suspect"
    BREAK = "break"
    TRY = "try"
    LEAVE = "leave"


TRANSITIONS: Mapping[Health, Mapping[Step, Health]] = MappingProxyType(
    {
        Health.JOINING: {
            Step.WARM: Health.WARMING,
            Step.RISE: Health.READY,
            Step.BREAK: Health.OPEN,
            Step.LEAVE: Health.GONE,
        },
        Health.WARMING: {
            Step.RISE: Health.READY,
            Step.SUSPECT: Health.SUSPECT,
            Step.BREAK: Health.OPEN,
            Step.LEAVE: Health.GONE,
        },
        Health.READY: {
            Step.SUSPECT: Health.SUSPECT,
            Step.BREAK: Health.OPEN,
            Step.LEAVE: Health.GONE,
        },
        Health.SUSPECT: {
            Step.RISE: Health.READY,
            Step.WARM: Health.WARMING,
            Step.TRY: Health.HALF_OPEN,
            Step.BREAK: Health.OPEN,
            Step.LEAVE: Health.GONE,
        },
        # Without a trial: what broke it was the request's fault, or its probes', which are good.
        Health.OPEN: {
            Step.TRY: Health.HALF_OPEN,
            Step.WARM: Health.WARMING,
            Step.RISE: Health.READY,
            Step.LEAVE: Health.GONE,
        },
        Health.HALF_OPEN: {
            Step.WARM: Health.WARMING,
            Step.RISE: Health.READY,
            Step.BREAK: Health.OPEN,
            Step.LEAVE: Health.GONE,
        },
        Health.GONE: {},
    }
)


class Cause(StrEnum):
    """Why a node is as it is: metric label, log value and API code alike."""

    JOINED = "joined"
    PROBES = "probes"  # its probes fail
    UNREACHABLE = "unreachable"  # requests find nobody there
    ERRORS = "errors"  # requests fail: closed, broken, 5xx, no answer in time
    SLOW = "slow"  # its answers take much longer than foreseen, and its peers' do not
    OVERDUE = "overdue"  # first tokens are long due, and its peers answer
    QUEUE = "queue"  # its own queue grows and nothing comes of it
    FEEDBACK = "feedback"  # somebody says so
    RESTARTS = "restarts"  # its engine has restarted again and again
    TRIAL = "trial"  # its time is over: it may show
    FORGIVEN = "forgiven"  # what failed there failed elsewhere alike
    RECOVERED = "recovered"
    LEFT = "left"


class Turn(msgspec.Struct, frozen=True):
    """One step of one node."""

    before: Health
    after: Health
    cause: Cause
    detail: str
