"""Answers of /v1/completions."""

import msgspec

from pointsman.engines.simulated.answers import (
    DONE,
    SYSTEM_FINGERPRINT,
    Choice,
    Script,
    running_usage,
    text_json,
    token_ids_json,
)


class CompletionDialect:
    """Text completions; one choice for each prompt and each of `n`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._envelope = (
            b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":['
            % (text_json(script.id), script.created, text_json(script.model))
        )

    def opening(self, choice: Choice) -> bytes:
        """Nothing: the first token's chunk is the first."""
        del choice
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
            self._envelope,
            choice.index,
            choice.output.piece(index),
            reason,
            b"null" if index else msgspec.json.encode(choice.prompt),
            token_ids_json(script, choice, index),
            usage,
        )

    def closing(self) -> bytes:
        """The usage chunk where it was asked for, and the end mark."""
        if not self.script.include_usage:
            return DONE
        usage = msgspec.json.encode(self.script.usage())
        return b'%b],"usage":%b,"system_fingerprint":%b}\n\n%b' % (
            self._envelope,
            usage,
            text_json(SYSTEM_FINGERPRINT),
            DONE,
        )

    def whole(self) -> bytes:
        """The text_completion object."""
        script = self.script
        return msgspec.json.encode(
            {
                "id": script.id,
                "object": "text_completion",
                "created": script.created,
                "model": script.model,
                "choices": [self._whole_choice(choice) for choice in script.choices],
                "service_tier": None,
                "system_fingerprint": SYSTEM_FINGERPRINT,
                "usage": script.usage(),
                "kv_transfer_params": None,
            }
        )

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
