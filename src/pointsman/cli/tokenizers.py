"""The tokenizers of a configuration: checked, loaded and wired."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client.registry import CollectorRegistry

from pointsman.cli.config import Config, Model
from pointsman.core.health import SERVING
from pointsman.core.ids import ModelName
from pointsman.core.scheduler import Scheduler
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.adapters.address import server_of
from pointsman.engines.tokenizer import (
    EngineSource,
    FolderSource,
    ModelTokenizer,
    Pieces,
    Source,
    TokenizerService,
    TokenizerState,
    Unusable,
    Workers,
    load,
)
from pointsman.engines.tokenizer import problem as folder_problem
from pointsman.telemetry.cluster_metrics import StateMetrics
from pointsman.telemetry.tokenizer_metrics import TokenizerMetrics

ENGINE = "engine"
NO_TEMPLATE = "none"

SERVING_S = 1.0
"""How long the list of engines to ask is good for: an engine that has gone answers nothing,
and the text index takes over."""


def model_problems(
    models: Sequence[Model], *, opens: bool
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where a model's entry is wrong, and the sentence for it. With `opens`: its files are read
    as a whole, too, which takes a second or so."""
    seen: dict[str, int] = {}
    for index, model in enumerate(models):
        if (first := seen.setdefault(model.name, index)) != index:
            text = f"models[{index}].name: '{model.name}' is models[{first}] already"
            yield ("models", index, "name"), text
        if problem := _problem(model, opens=opens):
            yield ("models", index, "tokenizer"), f"models[{index}].tokenizer: {problem}"


def _problem(model: Model, *, opens: bool) -> str:
    if model.tokenizer == ENGINE:
        return (
            "engines have their own template; leave chat_template out"
            if model.chat_template
            else ""
        )
    if not opens:
        return folder_problem(_folder(model), _template(model))
    try:
        load_model(model, Pieces(0))
    except Unusable as unusable:
        return str(unusable)
    return ""


def load_model(model: Model, pieces: Pieces) -> ModelTokenizer:
    """The tokenizer of a model that has a folder. Raises Unusable."""
    chats = model.chat_template != NO_TEMPLATE
    return load(_folder(model), pieces, _template(model), chats=chats)


def _folder(model: Model) -> Path:
    return Path(model.tokenizer).expanduser()


def _template(model: Model) -> Path | None:
    given = model.chat_template
    return None if given in ("", NO_TEMPLATE) else Path(given).expanduser()


class Tokenizers:
    """Those of one process, for the loop it is made on. `service` is None without any.

    Raises Unusable where a model's files cannot be used.
    """

    def __init__(
        self,
        config: Config,
        scheduler: Scheduler,
        registry: CollectorRegistry,
        keys: EngineKeys | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._serving: dict[ModelName, list[str]] = {}
        self._serving_until_s = 0.0
        self._pieces = Pieces(config.limits.tokenizer_bytes_max)
        self._engines = EngineSource(self._urls, keys)
        self._asks_engines = any(model.tokenizer == ENGINE for model in config.models)
        self._workers: Workers | None = None
        self.service: TokenizerService | None = None
        if config.models:
            self._workers = workers = Workers()
            sources = {ModelName(m.name): self._source(m, workers) for m in config.models}
            metrics = TokenizerMetrics(registry)
            self.service = TokenizerService(sources, scheduler.models, metrics)
            StateMetrics(registry, "pointsman_tokenizer", self.state)

    def state(self) -> TokenizerState:
        """Counts at one moment."""
        workers, pieces = self._workers, self._pieces
        pending = 0 if workers is None else workers.pending
        return TokenizerState(pending + self._engines.asked, len(pieces), pieces.bytes)

    async def run(self) -> None:
        """Until cancelled; over at once where no engine is to be asked."""
        if self._asks_engines:
            await self._engines.run()

    async def close(self) -> None:
        """End the threads. A second call changes nothing."""
        workers, self._workers = self._workers, None
        if workers is not None:
            await workers.close()

    def _source(self, model: Model, workers: Workers) -> Source:
        if model.tokenizer == ENGINE:
            return self._engines
        try:
            return FolderSource(load_model(model, self._pieces), workers)
        except Unusable as unusable:
            raise Unusable(f"the tokenizer of {model.name}: {unusable}") from None

    def _urls(self, model: ModelName) -> list[str]:
        """The engines that serve `model`; looked up anew every SERVING_S."""
        now_s = time.monotonic()
        if now_s >= self._serving_until_s:
            self._serving_until_s = now_s + SERVING_S
            self._serving = {}
            for node in self._scheduler.nodes(now_s):
                if node.health in SERVING and not node.draining:
                    for card in node.models:
                        self._serving.setdefault(card.name, []).append(server_of(node.url))
        return self._serving.get(model, [])
