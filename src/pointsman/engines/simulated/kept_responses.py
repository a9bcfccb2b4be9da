"""The Responses API's own memory: what was answered, to be read, cancelled and deleted.

A real engine keeps responses in its process, and so are these gone when it restarts.
"""

import functools
from collections import OrderedDict
from typing import Any, Final

import msgspec
from aiohttp import web

from pointsman.engines.simulated.answers import ApiError, Script
from pointsman.engines.simulated.bodies import ResponsesBody
from pointsman.engines.simulated.engine import Route, SimulatedEngine, json_answer
from pointsman.engines.simulated.openai_responses import ResponsesDialect

RESPONSES_MAX: Final = 1_000
PREFIX: Final = "/v1/responses/"


class KeptResponses:
    """The latest responses of one engine, and their routes."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._restarts = engine.restarts
        self._kept: OrderedDict[str, tuple[dict[str, Any], object]] = OrderedDict()

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """POST /v1/responses: generate, and keep what came of it."""
        made: list[ResponsesDialect] = []

        def dialect(script: Script) -> ResponsesDialect:
            made.append(ResponsesDialect(script))
            return made[0]

        answer = await self._engine.generate(request, ResponsesBody, dialect, "resp_")
        asked = msgspec.json.decode(await request.read())["input"]
        self._keep(msgspec.json.decode(made[0].whole()), asked)
        return answer

    def route(self, method: str, path: str) -> Route | None:
        """The handler of a path under a response's own; None where there is none."""
        response_id, _, rest = path.removeprefix(PREFIX).partition("/")
        handlers = {
            ("GET", ""): self._read,
            ("DELETE", ""): self._delete,
            ("POST", "cancel"): self._cancel,
            ("GET", "input_items"): self._input_items,
        }
        handler = handlers.get((method, rest))
        return None if handler is None else functools.partial(handler, response_id)

    async def _read(self, response_id: str, _: web.BaseRequest) -> web.StreamResponse:
        return json_answer(msgspec.json.encode(self._find(response_id)[0]))

    async def _delete(self, response_id: str, _: web.BaseRequest) -> web.StreamResponse:
        self._find(response_id)
        del self._kept[response_id]
        deleted = {"id": response_id, "object": "response", "deleted": True}
        return json_answer(msgspec.json.encode(deleted))

    async def _cancel(self, response_id: str, _: web.BaseRequest) -> web.StreamResponse:
        """Only what runs in the background could be cancelled, and nothing does here."""
        self._find(response_id)
        raise ApiError(400, "Cannot cancel a synchronous response.", param="response_id")

    async def _input_items(self, response_id: str, _: web.BaseRequest) -> web.StreamResponse:
        asked = self._find(response_id)[1]
        items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        return json_answer(msgspec.json.encode({"object": "list", "data": items}))

    def _find(self, response_id: str) -> tuple[dict[str, Any], object]:
        self._forget_after_restart()
        found = self._kept.get(response_id)
        if found is None:
            text = f"Response with id '{response_id}' not found."
            raise ApiError(404, text, "invalid_request_error", "response_id")
        return found

    def _keep(self, response: dict[str, Any], asked: object) -> None:
        self._forget_after_restart()
        self._kept[response["id"]] = response, asked
        if len(self._kept) > RESPONSES_MAX:
            self._kept.popitem(last=False)

    def _forget_after_restart(self) -> None:
        if self._restarts != self._engine.restarts:
            self._restarts = self._engine.restarts
            self._kept.clear()
