"""In the configuration: what placing goes by beside engines' health, and what it has prepared."""

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.cli.config_bounds import Seconds
from pointsman.core.rules import CostWeights, HotPrefixRules, WarmUpRules
from pointsman.gateway.options import GatewayOptions

_HOT = HotPrefixRules()
_WEIGHTS = CostWeights()


class HotPrefixes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a prompt beginning that many share is computed on one more engine."""

    memory_s: Annotated[
        float,
        Meta(
            ge=1,
            le=3_600,
            description="Seconds for which a request counts in what is asked for. Less follows a "
            "sudden change sooner, more ignores it.",
        ),
    ] = _HOT.memory_s
    holders_slack: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="Times its share of the requests, that a prefix may have of the engines. "
            "More copies spread it over more engines, and take more of their caches; 0 makes none.",
        ),
    ] = _HOT.holders_slack


class MarginalCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the policy of that name weighs against what."""

    first_token_weight: Annotated[
        float,
        Meta(
            gt=0,
            le=100,
            description="What a second before the first token counts beside a second of the rest. "
            "More lets answers begin sooner and end later; batch work wants 1.",
        ),
    ] = _WEIGHTS.first_token_weight
    urgent_imposes: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Of the delay that a request imposes on others, what counts if it is more "
            "urgent than normal. Less lets the urgent begin sooner at the expense of others.",
        ),
    ] = _WEIGHTS.urgent_imposes


class WarmUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine computes before it gets requests, when it is new or returns."""

    prefixes: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="So many of the hottest prompt beginnings that it lacks; 0 is off. Real "
            "requests that begin so are replayed to it for one token, so one body for each is kept "
            "in memory: of /v1/chat/completions and /v1/completions, without headers, never "
            "written anywhere.",
        ),
    ] = 0
    bytes_max: Annotated[
        int,
        Meta(ge=1_024, le=1 << 30, description="Bytes of those bodies; longer ones are not kept."),
    ] = GatewayOptions().warm_up_bytes_max
    within_s: Annotated[
        Seconds, Meta(description="Seconds that it may take; then the engine gets requests, cold.")
    ] = WarmUpRules().within_s
