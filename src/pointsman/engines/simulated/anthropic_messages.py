"""Answers of /v1/messages, the shape of Anthropic's API that vLLM serves too."""

import msgspec

from pointsman.engines.simulated.answers import Choice, Script, argument_piece, frame, text_json


class MessagesDialect:
    """One content block: text, or the use of a tool."""

    def __init__(self, script: Script) -> None:
        self.script = script
        kind, field = ("text_delta", "text")
        if script.tool is not None:
            kind, field = ("input_json_delta", "partial_json")
        self._head = (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"%b","%b":'
        ) % (kind.encode(), field.encode())

    def opening(self, choice: Choice) -> bytes:
        """The message and its block begin."""
        usage = {"input_tokens": self.script.prompt_tokens, "output_tokens": 0}
        message = {**self._message(choice), "content": [], "stop_reason": None, "usage": usage}
        started = frame("message_start", {"type": "message_start", "message": message})
        block = self._block(choice, empty=True)
        return started + frame(
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": block},
        )

    def piece(self, choice: Choice, index: int) -> bytes:
        """One token's delta."""
        if self.script.tool is None:
            text = choice.output.piece(index).decode()
        else:
            text = argument_piece(self.script.tool, choice, index)
        return b"%b%b}}\n\n" % (self._head, text_json(text))

    def closing(self) -> bytes:
        """Block, usage and message end."""
        choice = self.script.choices[0]
        delta = {"stop_reason": self._stop_reason(choice), "stop_sequence": None}
        usage = {"output_tokens": self.script.completion_tokens}
        return (
            frame("content_block_stop", {"type": "content_block_stop", "index": 0})
            + frame("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
            + frame("message_stop", {"type": "message_stop"})
        )

    def whole(self) -> bytes:
        """The message object."""
        return msgspec.json.encode(self._message(self.script.choices[0]))

    def _message(self, choice: Choice) -> dict[str, object]:
        script = self.script
        return {
            "id": script.id,
            "type": "message",
            "role": "assistant",
            "model": script.model,
            "content": [self._block(choice)],
            "stop_reason": self._stop_reason(choice),
            "stop_sequence": None,
            "usage": {
                "input_tokens": script.prompt_tokens,
                "cache_read_input_tokens": script.cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": script.completion_tokens,
            },
        }

    def _block(self, choice: Choice, *, empty: bool = False) -> dict[str, object]:
        text = "" if empty else choice.output.text
        if self.script.tool is None:
            return {"type": "text", "text": text}
        name, argument = self.script.tool
        return {
            "type": "tool_use",
            "id": f"toolu_{self.script.id.partition('_')[2]}",
            "name": name,
            "input": {} if empty else {argument: text},
        }

    def _stop_reason(self, choice: Choice) -> str:
        if self.script.tool is not None:
            return "tool_use"
        return "max_tokens" if choice.finish_reason == "length" else "end_turn"
