"""Answers of /v1/responses: one message (or one function call) as output."""

import msgspec

from pointsman.engines.simulated.answers import Choice, Script, argument_piece, frame, text_json


class ResponsesDialect:
    """The Responses API: typed, numbered events; no end mark."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._suffix = script.id.partition("_")[2]
        self._item_id = f"{'fc' if script.tool else 'msg'}_{self._suffix}"
        self._kind = "response.function_call_arguments" if script.tool else "response.output_text"
        self._number = 0
        self._head = (
            b'event: %b.delta\ndata: {"type":"%b.delta","item_id":%b,"output_index":0,%b'
            % (
                self._kind.encode(),
                self._kind.encode(),
                text_json(self._item_id),
                b"" if script.tool else b'"content_index":0,"logprobs":[],',
            )
        )

    def opening(self, choice: Choice) -> bytes:
        """The response, its item and its part begin."""
        response = self._response(choice, status="in_progress")
        frames = [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", output_index=0, item=self._item("")),
        ]
        if self.script.tool is None:
            part = {"type": "output_text", "text": "", "annotations": []}
            frames.append(self._part_event("response.content_part.added", part=part))
        return b"".join(frames)

    def piece(self, choice: Choice, index: int) -> bytes:
        """One token's delta, and after the last one the ends of part, item and response."""
        if self.script.tool is None:
            delta = choice.output.piece(index).decode()
        else:
            delta = argument_piece(self.script.tool, choice, index)
        number, self._number = self._number, self._number + 1
        piece = b'%b"sequence_number":%d,"delta":%b}\n\n' % (self._head, number, text_json(delta))
        return piece if index + 1 < choice.output.tokens else piece + self._ending(choice)

    def closing(self) -> bytes:
        """The completed response with its usage."""
        response = self._response(self.script.choices[0], status="completed")
        return self._event(f"response.{response['status']}", response=response)

    def whole(self) -> bytes:
        """The response object."""
        return msgspec.json.encode(self._response(self.script.choices[0], status="completed"))

    def _ending(self, choice: Choice) -> bytes:
        text = self._text(choice)
        if self.script.tool is None:
            part = {"type": "output_text", "text": text, "annotations": []}
            ended = self._part_event(f"{self._kind}.done", text=text, logprobs=[])
            ended += self._part_event("response.content_part.done", part=part)
        else:
            ended = self._event(
                f"{self._kind}.done", item_id=self._item_id, output_index=0, arguments=text
            )
        item = self._item(text, "completed")
        return ended + self._event("response.output_item.done", output_index=0, item=item)

    def _response(self, choice: Choice, *, status: str) -> dict[str, object]:
        script = self.script
        done = status == "completed"
        usage = {
            "input_tokens": script.prompt_tokens,
            "input_tokens_details": {"cached_tokens": script.cached_tokens},
            "output_tokens": script.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": script.prompt_tokens + script.completion_tokens,
        }
        cut = done and choice.finish_reason == "length" and script.tool is None
        return {
            "id": script.id,
            "object": "response",
            "created_at": script.created,
            "status": "incomplete" if cut else status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": None,
            "metadata": None,
            "model": script.model,
            "output": [self._item(self._text(choice), status)] if done else [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage if done else None,
        }

    def _text(self, choice: Choice) -> str:
        if self.script.tool is None:
            return choice.output.text
        return msgspec.json.encode({self.script.tool[1]: choice.output.text}).decode()

    def _item(self, text: str, status: str = "in_progress") -> dict[str, object]:
        if self.script.tool is not None:
            return {
                "type": "function_call",
                "id": self._item_id,
                "call_id": f"call_{self._suffix}",
                "name": self.script.tool[0],
                "arguments": text,
                "status": status,
            }
        content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
        return {
            "type": "message",
            "id": self._item_id,
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part_event(self, event: str, **fields: object) -> bytes:
        return self._event(event, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, event: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return frame(event, {"type": event, "sequence_number": number, **fields})
