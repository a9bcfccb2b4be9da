"""Answers of /v1/messages, the shape of Anthropic's API that vLLM serves too."""

import msgspec

from pointsman.engines.simulated.answers import Choice, Reply, argument_piece, frame, text_json


class MessagesDialect:
    """One content block: text, or the use of a tool."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        kind, field = ("text_delta", "text")
        if reply.tool is not None:
            kind, field = ("input_json_delta", "partial_json")
        self._head = (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"%b","%b":'
        ) % (kind.encode(), field.encode())

    def opening(self, choice: Choice) -> bytes:
        """The message and its block begin."""
        usage = {"input_tokens": self.reply.prompt_tokens, "output_tokens": 0}
        message = {**self._message(choice), "content": [], "stop_reason": None, "usage": usage}
        started = frame("message_start", {"type": "message_start", "message": message})
        block = self._block(choice, empty=True)
        return started + frame(
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": block},
        )

    def piece(self, choice: Choice, index: int) -> bytes:
        """One token's delta."""
        if self.reply.tool is None:
            text = choice.output.piece(index).decode()
        else:
            text = argument_piece(self.reply.tool, choice, index)
        return b"%b%b}}\n\n" % (self._head, text_json(text))

    def closing(self) -> bytes:
        """Block, usage and message end."""
        choice = self.reply.choices[0]
        delta = {"stop_reason": self._stop_reason(choice), "stop_sequence": None}
        usage = {"output_tokens": self.reply.completion_tokens}
        return (
            frame("content_block_stop", {"type": "content_block_stop", "index": 0})
            + frame("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
            + frame("message_stop", {"type": "message_stop"})
        )

    def whole(self) -> bytes:
        """The message object."""
        return msgspec.json.encode(self._message(self.reply.choices[0]))

    def _message(self, choice: Choice) -> dict[str, object]:
        reply = self.reply
        return {
            "id": reply.id,
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": [self._block(choice)],
            "stop_reason": self._stop_reason(choice),
            "stop_sequence": None,
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "cache_read_input_tokens": reply.cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": reply.completion_tokens,
            },
        }

    def _block(self, choice: Choice, *, empty: bool = False) -> dict[str, object]:
        text = "" if empty else choice.output.text
        if self.reply.tool is None:
            return {"type": "text", "text": text}
        name, argument = self.reply.tool
        return {
            "type": "tool_use",
            "id": f"toolu_{self.reply.id.partition('_')[2]}",
            "name": name,
            "input": {} if empty else {argument: text},
        }

    def _stop_reason(self, choice: Choice) -> str:
        if self.reply.tool is not None:
            return "tool_use"
        return "max_tokens" if choice.finish_reason == "length" else "end_turn"
