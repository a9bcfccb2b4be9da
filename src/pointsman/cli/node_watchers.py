"""What the scheduler says of nodes, carried out by the gateway."""

from functools import partial

from pointsman.control.service import SchedulerService
from pointsman.control.watcher import NodeWatcher
from pointsman.core.blocks import Prompt
from pointsman.core.events import Left, NodeWarmed, WarmUp
from pointsman.core.ids import BlockHash, NodeId
from pointsman.core.node import BLOCK_TOKENS_DEFAULT
from pointsman.core.scheme import TEXT_SCHEME, Scheme, Unit
from pointsman.gateway import Gateway, Samples


class ForgetfulPools(NodeWatcher):
    """Closes the gateway's connections to an incarnation that has ended."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def left(self, effect: Left) -> None:
        self._gateway.forget_node(effect.node_id)


class WarmUpByReplay(NodeWatcher):
    """Has the gateway replay what it keeps of hot prefixes, and says what came of it."""

    def __init__(self, gateway: Gateway, service: SchedulerService) -> None:
        self._gateway = gateway
        self._service = service

    def cold(self, effect: WarmUp) -> None:
        self._gateway.warm_up(effect, partial(self._computed, effect.node_id))

    def _computed(self, node_id: NodeId, prompt: Prompt | None) -> None:
        self._service.submit(NodeWarmed(node_id, prompt))


def hot_samples(service: SchedulerService) -> Samples:
    """Samples of what that scheduler finds hot, in the ways in which its nodes cut prompts."""

    def hottest(count: int) -> list[BlockHash]:
        prefixes = service.scheduler.hottest(count, service.now_s())
        return [prefix.block for prefix in prefixes]

    def schemes() -> list[Scheme]:
        nodes = service.scheduler.nodes(service.now_s())
        sizes = dict.fromkeys(n.facts.block_tokens or BLOCK_TOKENS_DEFAULT for n in nodes)
        return [TEXT_SCHEME, *(Scheme(Unit.TOKENS, size) for size in sizes)]

    return Samples(hottest, schemes)
