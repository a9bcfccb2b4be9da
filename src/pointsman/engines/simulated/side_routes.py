"""Routes that generate no text: pooling, tokenizer, audio, and what tells about the engine."""

import base64
from array import array
from collections.abc import Sequence
from statistics import fmean

import msgspec
import xxhash
from aiohttp import web

from pointsman import __version__
from pointsman.engines.simulated.answers import ApiError
from pointsman.engines.simulated.bodies import Message, prompt_tokens
from pointsman.engines.simulated.engine import Route, SimulatedEngine, decode, json_answer
from pointsman.engines.simulated.faults import FaultsPatch
from pointsman.engines.simulated.kv_events import (
    BUFFER_BATCHES,
    SEND_HIGH_WATER,
    EventPublisher,
)
from pointsman.engines.simulated.metrics import RankMetrics, render
from pointsman.engines.simulated.tokenizer import decode as decode_tokens
from pointsman.engines.simulated.tokenizer import encode, plan_output, render_chat

DIMENSIONS_DEFAULT = 64
DIMENSIONS_MAX = 4096
# Whisper's encoder: 1,500 positions for 30 s; uncompressed speech is 32,000 bytes a second.
AUDIO_BYTES_PER_TOKEN = 640
TRANSCRIPT_TOKENS = 12


class EmbeddingBody(msgspec.Struct, frozen=True):
    """POST /v1/embeddings."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    dimensions: int | None = None
    encoding_format: str = "float"


class RerankBody(msgspec.Struct, frozen=True):
    """POST /v1/rerank."""

    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None


class ScoreBody(msgspec.Struct, frozen=True):
    """POST /v1/score: one text against one or many."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None


class TokenizeBody(msgspec.Struct, frozen=True):
    """POST /tokenize: a prompt, or messages under the chat template."""

    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True):
    """POST /detokenize."""

    tokens: list[int]


class LoraBody(msgspec.Struct, frozen=True):
    """POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

    lora_name: str


class SideRoutes:
    """The handlers; `table` says where they are served."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    def table(self) -> dict[tuple[str, str], Route]:
        """(method, path) -> handler."""
        return {
            ("POST", "/v1/embeddings"): self.embeddings,
            ("POST", "/v1/rerank"): self.rerank,
            ("POST", "/rerank"): self.rerank,
            ("POST", "/v1/score"): self.score,
            ("POST", "/score"): self.score,
            ("POST", "/v1/audio/transcriptions"): self.transcriptions,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/detokenize"): self.detokenize,
            ("GET", "/v1/models"): self.models,
            ("POST", "/v1/load_lora_adapter"): self.load_lora,
            ("POST", "/v1/unload_lora_adapter"): self.unload_lora,
            ("GET", "/health"): self.health,
            ("GET", "/ping"): self.health,
            ("POST", "/ping"): self.health,
            ("GET", "/version"): self.version,
            ("GET", "/load"): self.load,
            ("GET", "/kv_event_sources"): self.kv_event_sources,
            ("GET", "/metrics"): self.metrics,
            ("POST", "/reset_prefix_cache"): self.reset_prefix_cache,
            ("GET", "/simulate"): self.state,
            ("POST", "/simulate"): self.simulate,
        }

    async def embeddings(self, request: web.BaseRequest) -> web.StreamResponse:
        """Deterministic unit-range vectors, as floats or base64 (the openai client's default)."""
        body = decode(await self._engine.admit(request), EmbeddingBody)
        size = DIMENSIONS_DEFAULT if body.dimensions is None else body.dimensions
        if not 1 <= size <= DIMENSIONS_MAX:
            text = f"dimensions must be from 1 to {DIMENSIONS_MAX}"
            raise ApiError(400, text, param="dimensions")
        prompts = prompt_tokens(body.input)
        model = body.model or self._engine.options.model
        await self._engine.compute(request, prompts, model)
        vectors = [_vector(prompt, size) for prompt in prompts]
        as_text = body.encoding_format == "base64"
        data: list[dict[str, object]] = [
            {
                "index": index,
                "object": "embedding",
                "embedding": base64.b64encode(vector).decode() if as_text else list(vector),
            }
            for index, vector in enumerate(vectors)
        ]
        return self._pooled(request, "embd-", model, prompts, {"object": "list", "data": data})

    async def rerank(self, request: web.BaseRequest) -> web.StreamResponse:
        """Documents by deterministic relevance."""
        body = decode(await self._engine.admit(request), RerankBody)
        model = body.model or self._engine.options.model
        prompts = [encode(f"{body.query}\n{document}") for document in body.documents]
        await self._engine.compute(request, prompts, model)
        scores = [_score(prompt) for prompt in prompts]
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        results = [
            {
                "index": index,
                "document": {"text": body.documents[index], "multi_modal": None},
                "relevance_score": scores[index],
            }
            for index in order[: body.top_n or len(order)]
        ]
        return self._pooled(request, "rerank-", model, prompts, {"results": results})

    async def score(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pairs of texts, scored deterministically."""
        body = decode(await self._engine.admit(request), ScoreBody)
        model = body.model or self._engine.options.model
        left, right = _listed(body.text_1), _listed(body.text_2)
        if len(left) not in (1, len(right)):
            raise ApiError(400, "text_1 must be one text or as many as text_2", param="text_1")
        left = left * (len(right) // len(left)) if left else left
        prompts = [encode(f"{a}\n{b}") for a, b in zip(left, right, strict=True)]
        await self._engine.compute(request, prompts, model)
        data = [
            {"index": index, "object": "score", "score": _score(prompt)}
            for index, prompt in enumerate(prompts)
        ]
        return self._pooled(request, "score-", model, prompts, {"object": "list", "data": data})

    async def transcriptions(self, request: web.BaseRequest) -> web.StreamResponse:
        """A multipart upload; the text depends on the audio's bytes alone."""
        try:
            form = await request.post()
        except ValueError as error:  # as FastAPI answers to what is no form
            raise ApiError(400, "There was an error parsing the body") from error
        await self._engine.admit(request)
        file, model = form.get("file"), form.get("model")
        if not isinstance(file, web.FileField):
            raise ApiError(400, "a file is required", param="file")
        audio = file.file.read()
        length = max(1, len(audio) // AUDIO_BYTES_PER_TOKEN)
        length = min(length, self._engine.profile.context_tokens - 1)
        digest = xxhash.xxh3_64_intdigest(audio)
        prompt = array("I", [digest & 0xFFFFFFFF]) * length
        name = model if isinstance(model, str) else self._engine.options.model
        await self._engine.compute(request, [prompt], name)
        text = plan_output(digest, TRANSCRIPT_TOKENS).text.strip()
        if form.get("response_format") == "text":
            return web.Response(text=text)
        usage = {"type": "duration", "seconds": max(1, len(audio) // 32_000)}
        return _json({"text": text, "usage": usage})

    async def tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        """Token ids of a prompt, or of messages with the chat template."""
        body = decode(await request.read(), TokenizeBody)
        if body.messages is not None:
            turns = [message.turn() for message in body.messages]
            tokens = render_chat(turns, generation_prompt=body.add_generation_prompt)
        elif body.prompt is not None:
            tokens = encode(body.prompt)
        else:
            raise ApiError(400, "prompt or messages is required", param="prompt")
        texts = [decode_tokens([token]) for token in tokens] if body.return_token_strs else None
        return _json(
            {
                "count": len(tokens),
                "max_model_len": self._engine.profile.context_tokens,
                "tokens": list(tokens),
                "token_strs": texts,
            }
        )

    async def detokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        """The text of token ids."""
        return _json({"prompt": decode_tokens(decode(await request.read(), DetokenizeBody).tokens)})

    async def models(self, _: web.BaseRequest) -> web.StreamResponse:
        """The model and its adapters."""
        engine = self._engine
        base = engine.options.model
        data = [self._model(base, None)] + [self._model(name, base) for name in engine.loras]
        return _json({"object": "list", "data": data})

    async def load_lora(self, request: web.BaseRequest) -> web.StreamResponse:
        """An adapter appears at run time."""
        name = decode(await request.read(), LoraBody).lora_name
        loras = self._engine.loras
        if not name or name in loras or name == self._engine.options.model:
            raise ApiError(400, f"The lora adapter '{name}' has already been loaded.")
        loras[name] = max(loras.values(), default=0) + 1
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_lora(self, request: web.BaseRequest) -> web.StreamResponse:
        """An adapter goes."""
        name = decode(await request.read(), LoraBody).lora_name
        if self._engine.loras.pop(name, None) is None:
            text = f"The lora adapter '{name}' cannot be found."
            raise ApiError(404, text, "NotFoundError")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def health(self, _: web.BaseRequest) -> web.StreamResponse:
        """200 without a body, or what the faults say."""
        return web.Response(status=self._engine.faults.health_status or 200)

    async def version(self, _: web.BaseRequest) -> web.StreamResponse:
        """A version that says what this is."""
        return _json({"version": f"0.32.0+pointsman.{__version__}"})

    async def load(self, _: web.BaseRequest) -> web.StreamResponse:
        """Inference requests being served."""
        return _json({"server_load": self._engine.load})

    async def kv_event_sources(self, _: web.BaseRequest) -> web.StreamResponse:
        """Where KV events are published, per data-parallel rank."""
        sources = {
            str(number): _source(rank.publisher)
            for number, rank in enumerate(self._engine.ranks)
            if rank.publisher is not None
        }
        return _json(sources)

    async def metrics(self, _: web.BaseRequest) -> web.StreamResponse:
        """Prometheus text."""
        engine = self._engine
        text = render(
            [RankMetrics(rank.stats, rank.driver.model) for rank in engine.ranks],
            model_name=engine.options.model,
            started_s=engine.started_s,
            legacy=engine.options.legacy_metrics,
        )
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=text.encode(), headers=headers)

    async def reset_prefix_cache(self, _: web.BaseRequest) -> web.StreamResponse:
        """Drops the cache unless blocks are in use; published with the next step, as by vLLM."""
        for rank in self._engine.ranks:
            rank.driver.model.clear_cache()
        return web.Response()

    async def state(self, _: web.BaseRequest) -> web.StreamResponse:
        """The faults in force and what the engine holds."""
        engine = self._engine
        models = [rank.driver.model for rank in engine.ranks]
        state = {
            "faults": engine.faults,
            "restarts": engine.restarts,
            "steps": sum(rank.driver.steps for rank in engine.ranks),
            "running": sum(model.running for model in models),
            "waiting": sum(model.waiting for model in models),
            "kv_blocks_used": sum(model.pool.used for model in models),
            "kv_blocks_cached": sum(len(model.pool.cached) for model in models),
            "kv_usage": fmean(model.kv_usage for model in models),
            "preemptions": sum(model.preemptions for model in models),
            "event_sequence": engine.publisher.sequence if engine.publisher is not None else None,
        }
        return _json(state)

    async def simulate(self, request: web.BaseRequest) -> web.StreamResponse:
        """Change the faults; answers with the state."""
        self._engine.simulate(decode(await request.read(), FaultsPatch))
        return await self.state(request)

    def _model(self, name: str, parent: str | None) -> dict[str, object]:
        engine = self._engine
        return {
            "id": name,
            "object": "model",
            "created": int(engine.started_s),
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": engine.profile.context_tokens if parent is None else None,
            "permission": [],
        }

    def _pooled(
        self,
        request: web.BaseRequest,
        prefix: str,
        model: str,
        prompts: Sequence["array[int]"],
        fields: dict[str, object],
    ) -> web.Response:
        total = sum(len(prompt) for prompt in prompts)
        usage = {"prompt_tokens": total, "total_tokens": total}
        identity = self._engine.answer_id(request, prefix)
        return _json({"id": identity, "model": model, **fields, "usage": usage})


def _source(publisher: EventPublisher) -> dict[str, object]:
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{publisher.port}",
        "replay_endpoint": f"tcp://*:{publisher.replay_port}",
        "buffer_steps": BUFFER_BATCHES,
        "hwm": SEND_HIGH_WATER,
        "max_queue_size": SEND_HIGH_WATER,
        "topic": publisher.topic,
    }


def _json(value: object) -> web.Response:
    return json_answer(msgspec.json.encode(value))


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _score(prompt: "array[int]") -> float:
    return (xxhash.xxh3_64_intdigest(memoryview(prompt)) % 1_000_000) / 1_000_000


def _vector(prompt: "array[int]", size: int) -> "array[float]":
    digest = xxhash.xxh3_64_intdigest
    seeds = memoryview(prompt)
    return array("f", [digest(seeds, index) / 2**63 - 1.0 for index in range(size)])
