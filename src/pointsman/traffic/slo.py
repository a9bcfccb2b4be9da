"""The objective that a request meets or misses, live or simulated alike."""

from typing import Annotated

import msgspec

from pointsman.traffic.outcome import RequestRecord


class Slo(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """What a user accepts: a first token within `ttft_s + ttft_s_per_token · prompt tokens`, and
    `tpot_s` a further token on average."""

    ttft_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    ttft_s_per_token: Annotated[float, msgspec.Meta(ge=0)] = 0.0005
    tpot_s: Annotated[float, msgspec.Meta(gt=0)] = 0.1

    def ttft_due_s(self, input_tokens: int) -> float:
        """The latest first token of a prompt of this length."""
        return self.ttft_s + self.ttft_s_per_token * input_tokens

    def met(self, record: RequestRecord) -> bool:
        """Whether a finished request was good."""
        if record.ttft_s is None:
            return False
        due_s = self.ttft_due_s(record.input_tokens)
        return record.ttft_s <= due_s and (record.tpot_s or 0.0) <= self.tpot_s
