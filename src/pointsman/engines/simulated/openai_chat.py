"""Answers of /v1/chat/completions."""

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


class ChatDialect:
    """Chat completions, with a tool call in place of text where the request brings tools."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._chunk_head = chunk_head(script, b"chat.completion.chunk")
        self._plain = not (script.continuous_usage or script.return_token_ids or script.tool)
        self._heads = [self._head(choice) for choice in script.choices]

    def opening(self, choice: Choice) -> bytes:
        """The role, and the tool that is being called."""
        ids = b'"prompt_token_ids":%b' % msgspec.json.encode(choice.prompt)
        delta = b'{"role":"assistant","content":""}'
        first = b'%b{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}],%b%b}\n\n' % (
            self._chunk_head,
            choice.index,
            delta,
            ids,
            self._usage(choice, 0),
        )
        return first if self.script.tool is None else first + self._tool_opening(choice)

    def piece(self, choice: Choice, index: int) -> bytes:
        """One token's chunk; this is the hot path of a streaming engine."""
        head = self._heads[choice.index]
        last = index + 1 == choice.output.tokens
        if self._plain and not last:
            return b'%b%b"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n' % (
                head,
                choice.output.piece(index),
            )
        text, close = choice.output.piece(index), b'"}'
        if self.script.tool is not None:
            text, close = self._argument(choice, index), b'"}}]}'
        reason = b"null"
        if last:
            reason = b'%b,"stop_reason":null' % text_json(self._finish_reason(choice))
        return b'%b%b%b,"logprobs":null,"finish_reason":%b,"token_ids":%b}]%b}\n\n' % (
            head,
            text,
            close,
            reason,
            token_ids_json(self.script, choice, index),
            self._usage(choice, index + 1),
        )

    def closing(self) -> bytes:
        """The usage chunk where it was asked for, and the end mark."""
        return chunks_end(self.script, self._chunk_head)

    def whole(self) -> bytes:
        """The chat.completion object."""
        script = self.script
        choices = [self._whole_choice(choice) for choice in script.choices]
        prompt = script.choices[0].prompt
        return whole_object(
            script, "chat.completion", choices, prompt_logprobs=None, prompt_token_ids=prompt
        )

    def _head(self, choice: Choice) -> bytes:
        delta = b'"content":"'
        if self.script.tool is not None:
            delta = b'"tool_calls":[{"index":0,"function":{"arguments":"'
        return b'%b{"index":%d,"delta":{%b' % (self._chunk_head, choice.index, delta)

    def _usage(self, choice: Choice, tokens: int) -> bytes:
        return running_usage(choice, tokens) if self.script.continuous_usage else b""

    def _finish_reason(self, choice: Choice) -> str:
        return choice.finish_reason if self.script.tool is None else "tool_calls"

    def _tool_opening(self, choice: Choice) -> bytes:
        call = self._tool_call(choice, "")
        delta = msgspec.json.encode({"tool_calls": [{"index": 0, **call}]})
        return b'%b{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}]%b}\n\n' % (
            self._chunk_head,
            choice.index,
            delta,
            self._usage(choice, 0),
        )

    def _argument(self, choice: Choice, index: int) -> bytes:
        """A token as part of the arguments, a JSON document inside a JSON string."""
        assert self.script.tool is not None
        opened = "{" + msgspec.json.encode(self.script.tool[1]).decode() + ': "'
        before = text_json(opened)[1:-1] if index == 0 else b""
        after = b'\\"}' if index + 1 == choice.output.tokens else b""
        return before + choice.output.piece(index) + after

    def _tool_call(self, choice: Choice, arguments: str) -> dict[str, object]:
        assert self.script.tool is not None
        return {
            "id": f"chatcmpl-tool-{self.script.id.partition('-')[2]}-{choice.index}",
            "type": "function",
            "function": {"name": self.script.tool[0], "arguments": arguments},
        }

    def _whole_choice(self, choice: Choice) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": choice.output.text}
        if self.script.tool is not None:
            arguments = msgspec.json.encode({self.script.tool[1]: choice.output.text}).decode()
            message["content"] = None
            message["tool_calls"] = [self._tool_call(choice, arguments)]
        ids = list(choice.output.token_ids) if self.script.return_token_ids else None
        return {
            "index": choice.index,
            "message": {**message, "refusal": None, "annotations": None, "reasoning": None},
            "logprobs": None,
            "finish_reason": self._finish_reason(choice),
            "stop_reason": None,
            "token_ids": ids,
        }
