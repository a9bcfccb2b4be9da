"""Answers of /v1/completions."""

import msgspec

from pointsman.engines.simulated.answers import (
    Choice,
    Script,
    chunk_head,
    chunks_end,
    running_usage,
    text_json,
    token_ids_json,
    whole_object,
)


class CompletionDialect:
    """Text completions; one choice for each prompt and each of `n`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._chunk_head = chunk_head(script, b"text_completion")

    def opening(self, _: Choice) -> bytes:
        """Nothing: the first token's chunk is the first."""
        return b""

    def piece(self, choice: Choice, index: int) -> bytes:
        """One token's chunk."""
        script = self.script
        reason = b"null"
        if index + 1 == choice.output.tokens:
            reason = text_json(choice.finish_reason)
        usage = running_usage(choice, index + 1) if script.continuous_usage else b""
        return (
            b'%b{"index":%d,"text":"%b","logprobs":null,"finish_reason":%b,"stop_reason":null,'
            b'"prompt_token_ids":%b,"token_ids":%b}]%b}\n\n'
        ) % (
            self._chunk_head,
            choice.index,
            choice.output.piece(index),
            reason,
            b"null" if index else msgspec.json.encode(choice.prompt),
            token_ids_json(script, choice, index),
            usage,
        )

    def closing(self) -> bytes:
        """The usage chunk where it was asked for, and the end mark."""
        return chunks_end(self.script, self._chunk_head)

    def whole(self) -> bytes:
        """The text_completion object."""
        choices = [self._whole_choice(choice) for choice in self.script.choices]
        return whole_object(self.script, "text_completion", choices)

    def _whole_choice(self, choice: Choice) -> dict[str, object]:
        ids = list(choice.output.token_ids) if self.script.return_token_ids else None
        return {
            "index": choice.index,
            "text": choice.output.text,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": None,
            "token_ids": ids,
            "prompt_logprobs": None,
            "prompt_token_ids": choice.prompt,
        }
