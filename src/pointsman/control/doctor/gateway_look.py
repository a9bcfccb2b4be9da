"""A running gateway looked at: its data plane, and the state that its admin plane tells."""

import aiohttp
import msgspec

from pointsman.collectors.client import EngineClient
from pointsman.control.doctor import probes
from pointsman.control.doctor.engine_look import streamed
from pointsman.control.doctor.seen import GatewaySeen, ProbeSeen, StateSeen, StreamSeen
from pointsman.decoding import Undecodable, decoded
from pointsman.engines.adapters import EngineTrouble
from pointsman.engines.adapters.model_list import read_model_list

ANSWER_S_MAX = 5.0


async def look_at_gateway(
    session: aiohttp.ClientSession,
    admin: GatewaySeen,
    url: str,
    *,
    probing: bool,
    wanted: str | None,
) -> GatewaySeen:
    """`admin`, and /ready, /v1/models, and a tiny request. `wanted` is the model to ask for."""
    client = EngineClient(session, url)
    try:
        ready = await client.get("/ready", timeout_s=ANSWER_S_MAX)
        models = await client.get("/v1/models", timeout_s=ANSWER_S_MAX)
    except EngineTrouble as trouble:
        return msgspec.structs.replace(admin, url=url, trouble=str(trouble))
    listed = read_model_list(models.body)
    names = tuple(card.name for card in listed.cards) if listed is not None else ()
    probe: ProbeSeen | None = None
    streams: tuple[StreamSeen, ...] = ()
    if probing and names and ready.status == 200:
        model = wanted if wanted in names else names[0]
        prompt = probes.new_prompt(None, None)
        probe = await probes.repeat(client, model=model, prompt=prompt)
        if probe.usages:
            streams = await streamed(client, probe)
    return msgspec.structs.replace(
        admin,
        url=url,
        ready_status=ready.status,
        models_status=models.status,
        models=names,
        probe=probe,
        streams=streams,
    )


async def look_at_admin(session: aiohttp.ClientSession, url: str) -> StateSeen:
    """The state. Raises EngineTrouble."""
    reply = await EngineClient(session, url).get("/pointsman/v1/state", timeout_s=ANSWER_S_MAX)
    if reply.status != 200:
        raise EngineTrouble(f"GET /pointsman/v1/state answers {reply.status}")
    try:
        return decoded(msgspec.json.Decoder(StateSeen).decode, reply.body)
    except Undecodable as error:
        raise EngineTrouble(f"GET /pointsman/v1/state is no state of Pointsman: {error}") from None
