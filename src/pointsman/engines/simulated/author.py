"""From a decoded request to the jobs that compute it.

Everything about a generated text is decided here, before its first token: the words follow from the
prompt and the seeds, the length from the limits and stop strings. The engine only lets time pass.
"""

import itertools
import time
from array import array
from collections.abc import Mapping

import xxhash

from pointsman.engines.compute_model import Job, Profile, chain_hashes, root_hash
from pointsman.engines.simulated.answers import ApiError, Choice, Script
from pointsman.engines.simulated.bodies import OUTPUT_TOKENS_DEFAULT, Ask
from pointsman.engines.simulated.tokenizer import plan_output

_CHOICE_STRIDE = 7  # words between the beginnings of two choices' texts


class Author:
    """Writes scripts, and the jobs for them; knows the model's names and limits."""

    def __init__(
        self, *, model: str, loras: Mapping[str, int], profile: Profile, seed: int
    ) -> None:
        self._model = model
        self._loras = loras
        self._profile = profile
        self._seed = seed
        self._numbers = itertools.count()

    def write(self, ask: Ask, *, answer_id: str, priority: int) -> Script:
        """One choice for each prompt and each of `n`. Raises ApiError."""
        lora = self._lora_of(ask.model)
        choices: list[Choice] = []
        for prompt in ask.prompts:
            self._check_length(len(prompt), ask.output_tokens)
            seed = (self._seed << 32 ^ ask.seed) & 0xFFFFFFFFFFFFFFFF
            offset = xxhash.xxh3_64_intdigest(memoryview(prompt), seed)
            for _ in range(ask.n):
                start = offset + _CHOICE_STRIDE * len(choices)
                choices.append(
                    self._choice(
                        ask, prompt, index=len(choices), offset=start, lora=lora, priority=priority
                    )
                )
        return Script(
            id=answer_id,
            created=int(time.time()),
            model=ask.model,
            choices=choices,
            prompts=len(ask.prompts),
            stream=ask.stream,
            include_usage=ask.include_usage,
            continuous_usage=ask.continuous_usage,
            return_token_ids=ask.return_token_ids,
            tool=ask.tool,
        )

    def pooling_jobs(self, prompts: list["array[int]"], model: str) -> list[Job]:
        """Jobs that read prompts and generate nothing of use. Raises ApiError."""
        lora = self._lora_of(model)
        for prompt in prompts:
            self._check_length(len(prompt), 1)
        return [self._job(prompt, array("I", [0]), lora=lora) for prompt in prompts]

    def fresh_id(self) -> str:
        """An id for an answer whose client named none."""
        return xxhash.xxh3_64_hexdigest(f"{time.time_ns()}/{next(self._numbers)}".encode())

    def _choice(
        self,
        ask: Ask,
        prompt: "array[int]",
        *,
        index: int,
        offset: int,
        lora: str | None,
        priority: int,
    ) -> Choice:
        room = self._profile.context_tokens - len(prompt)
        tokens = ask.output_tokens
        if tokens is None:
            tokens = min(OUTPUT_TOKENS_DEFAULT, room)
        output = plan_output(offset, tokens, ask.stops)
        limited = ask.output_tokens is not None and output.cut is None
        return Choice(
            index=index,
            prompt=list(prompt) if ask.return_token_ids else None,
            output=output,
            finish_reason="length" if limited else "stop",
            job=self._job(prompt, output.token_ids, lora=lora, salt=ask.salt, priority=priority),
        )

    def _job(
        self,
        prompt: "array[int]",
        output: "array[int]",
        *,
        lora: str | None,
        salt: str | None = None,
        priority: int = 0,
    ) -> Job:
        tokens = prompt + output
        hashes = chain_hashes(
            memoryview(tokens).cast("B"),
            block_bytes=tokens.itemsize * self._profile.block_size,
            root=root_hash(lora, salt),
        )
        name = f"{next(self._numbers)}"
        return Job(name, len(prompt), len(output), hashes, priority, tokens, lora, salt)

    def _lora_of(self, model: str) -> str | None:
        """The adapter that a model name means, None for the base model."""
        if model == self._model:
            return None
        if model in self._loras:
            return model
        aliases = ", ".join((self._model, *self._loras))
        text = f"The model `{model}` does not exist. Valid aliases: {aliases}."
        raise ApiError(404, text, "NotFoundError", "model")

    def _check_length(self, prompt_tokens: int, output_tokens: int | None) -> None:
        limit = self._profile.context_tokens
        start = f"This model's maximum context length is {limit} tokens. However, "
        if prompt_tokens < 1:
            raise ApiError(400, "The prompt must not be empty.", param="prompt")
        if prompt_tokens >= limit:
            text = (
                f"{start}your prompt contains {prompt_tokens} input tokens, which exceeds this "
                "limit even without any output tokens. Please reduce the length of the input "
                f"prompt. (parameter=input_tokens, value={prompt_tokens})"
            )
            raise ApiError(400, text, param="input_tokens")
        if output_tokens is not None and prompt_tokens + output_tokens > limit:
            text = (
                f"{start}you requested {output_tokens} output tokens and your prompt contains "
                f"{prompt_tokens} input tokens, {prompt_tokens + output_tokens} in total. "
                f"(parameter=max_tokens, value={output_tokens})"
            )
            raise ApiError(400, text, param="max_tokens")
