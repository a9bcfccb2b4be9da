"""What the admin plane takes and gives, as JSON."""

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from pointsman.control.counters import ServiceCounters
from pointsman.control.fleet import NodeStatus
from pointsman.control.listed import Ranks
from pointsman.core.events import ModelCard, NodeSpec
from pointsman.core.ids import NAME_PATTERN, ModelName, NodeName
from pointsman.core.limits import CONCURRENCY_MAX, MODEL_CHARS_MAX
from pointsman.core.stats import Stats
from pointsman.core.views import AdmissionView, HotPrefixView, NodeView
from pointsman.engines.adapters.address import one_spelling


class NodeState(NodeView, frozen=True, kw_only=True):
    """One node: what the core sees, and what the collectors say of their work. `problem` says why
    it is not described; `events` where its cache events come from."""

    problem: str = ""
    events: str = ""
    restarts: int = 0

    @classmethod
    def of(cls, view: NodeView, status: NodeStatus | None) -> "NodeState":
        known = {} if status is None else asdict(status)
        return cls(**asdict(view), **known)


class Totals(msgspec.Struct, frozen=True):
    """The cluster in a few numbers. `unsettled` is what the gateway has not finished."""

    in_flight: int
    held: int
    unsettled: int
    index_bytes: int
    decisions_kept: int


class AdmissionState(msgspec.Struct, frozen=True):
    """Who waits, by class of size, and how full the nodes of each model are."""

    held: dict[str, int]
    models: tuple[AdmissionView, ...]


class ProcessState(msgspec.Struct, frozen=True):
    """Everything at one moment. `keys` are those with names and what they have used, never
    the keys themselves; `configuration` is where it was read and what came of that. `failures`
    above 0 are bugs; the log has them."""

    version: str
    code: str  # compiled or interpreted
    ready: bool
    policy: str
    models: tuple[ModelCard, ...]
    nodes: tuple[NodeState, ...]
    totals: Totals
    admission: AdmissionState
    gateway: msgspec.Struct
    keys: tuple[msgspec.Struct, ...]
    configuration: msgspec.Struct
    hot_prefixes: tuple[HotPrefixView, ...]
    stats: Stats
    failures: ServiceCounters


class PolicyState(msgspec.Struct, frozen=True):
    """The policy in force, and those there are."""

    policy: str
    policies: tuple[str, ...]


class PolicyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PUT /pointsman/v1/policy."""

    policy: str


class ExplainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /pointsman/v1/explain: a request as a client would send it."""

    body: msgspec.Raw
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = {}


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /pointsman/v1/nodes/NAME/feedback: how the node is, from who uses it. One that is not
    well counts as a failed request there, one that is as an answered one."""

    healthy: bool
    detail: Annotated[str, Meta(max_length=200)] = ""


class NewNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """POST /pointsman/v1/nodes."""

    name: Annotated[NodeName, Meta(pattern=NAME_PATTERN)]
    url: str
    models: tuple[Annotated[ModelName, Meta(min_length=1, max_length=MODEL_CHARS_MAX)], ...] = ()
    pool: str = "default"
    zone: str = ""
    labels: dict[str, str] = {}
    concurrency_max: Annotated[int, Meta(ge=1, le=CONCURRENCY_MAX)] | None = None
    kv_events: str = "auto"
    api_key: str = ""
    ranks: Ranks = "auto"

    def __repr__(self) -> str:
        """Without the key."""
        return f"<NewNode {self.name} at {self.url}>"

    def spec(self) -> NodeSpec:
        return NodeSpec(
            name=self.name,
            url=one_spelling(self.url),
            models=self.models,
            pool=self.pool,
            zone=self.zone,
            labels=tuple(sorted(self.labels.items())),
            concurrency_max=self.concurrency_max,
        )
