"""`pointsman engine`: one simulated engine in the foreground."""

import gc

import click
import msgspec
import uvloop

from pointsman.cli.messages import fail
from pointsman.cli.shared_options import (
    ABOVE_ZERO,
    PORT,
    POSITIVE,
    engine_speed_option,
    host_option,
    kv_blocks_option,
    model_name_option,
    profile_option,
    text_seed_option,
)
from pointsman.engines.simulated import EngineOptions, PortInUseError, RunningEngine, serve
from pointsman.engines.simulated.options import EventEncoding, HashKind

_PORT_BEFORE_ANOTHER = click.IntRange(min=0, max=65_534)


@click.command(
    epilog="""\b
Try it:
  pointsman engine --port 8001 --kv-events-port 5557 --speed 10
  curl localhost:8001/v1/completions -H 'content-type: application/json' \\
       -d '{"prompt": "Once upon a time", "max_tokens": 8}'
  curl localhost:8001/simulate -d '{"slow": 5}'                 five times slower
  curl localhost:8001/simulate -d '{"status": 503, "count": 3}' three answers are 503
  curl localhost:8001/simulate -d '{"cut_at_token": 4}'         streams break after 4 tokens
  curl localhost:8001/simulate -d '{"hang": true}'              accepts, never answers
  curl localhost:8001/simulate -d '{"restart": true}'           cold cache, events from 0
  curl localhost:8001/simulate -d '{"reset": true}'             healthy again
  curl localhost:8001/simulate                                  what it is doing

Exit codes: 0 stopped by SIGTERM or SIGINT, 2 wrong usage or a port in use.
"""
)
@click.option(
    "--port", type=PORT, metavar="PORT", required=True, help="HTTP port; 0 takes a free one."
)
@host_option
@model_name_option
@profile_option
@kv_blocks_option
@click.option(
    "--block-size", type=POSITIVE, metavar="N", help="Tokens per KV block.  [default: 16]"
)
@click.option(
    "--max-num-seqs", type=POSITIVE, metavar="N", help="Sequences in a step.  [default: 256]"
)
@click.option(
    "--max-num-batched-tokens",
    type=POSITIVE,
    metavar="N",
    help="Tokens in a step.  [default: 8192]",
)
@click.option(
    "--max-model-len", type=POSITIVE, metavar="N", help="Context length.  [default: the profile's]"
)
@click.option(
    "--max-num-queued-reqs",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Requests, running and waiting, beyond which it answers 503; 0: no limit.",
)
@click.option(
    "--kv-events-port",
    type=_PORT_BEFORE_ANOTHER,
    metavar="PORT",
    help="Publish KV events on this ZMQ port, replay on the next one; 0 takes free ones.",
)
@click.option(
    "--data-parallel-size",
    type=click.IntRange(min=1, max=64),
    metavar="N",
    default=1,
    help="Engines behind the port, each with a cache of its own and KV events on ports in a row; "
    "X-data-parallel-rank names one.",
)
@click.option(
    "--kv-events-topic",
    metavar="TOPIC",
    help='Topic of its KV events; vLLM\'s own default is "".  [default: kv@HOST:PORT@MODEL]',
)
@click.option(
    "--kv-events-encoding",
    type=click.Choice([encoding.value for encoding in EventEncoding]),
    default="map",
    help="Events as maps (vLLM since 0.24) or as arrays (before).",
)
@click.option(
    "--kv-events-hashes",
    type=click.Choice([kind.value for kind in HashKind]),
    default="int",
    help="Block hashes in events as 64-bit integers or as 32 bytes.",
)
@engine_speed_option
@text_seed_option
@click.option("--lora", multiple=True, metavar="NAME", help="A LoRA adapter; repeatable.")
@click.option(
    "--api-key",
    metavar="KEY",
    default="",
    show_default=False,
    help="What its routes under /v1 ask for, as a bearer.",
)
@click.option("--legacy-metrics", is_flag=True, help="Also export metric names of vLLM < 0.10.")
@click.option(
    "--idle-close",
    "idle_close_s",
    type=ABOVE_ZERO,
    metavar="SECONDS",
    default=5.0,
    help="When an idle connection is closed without notice.",
)
def engine(lora: tuple[str, ...], **given: object) -> None:
    """One simulated inference engine, without a GPU.

    It has vLLM's HTTP routes, /metrics and KV events, and computes with a model of continuous
    batching: queueing, chunked prefill, a paged KV cache with a prefix cache, preemption. Text is
    made up but deterministic; one token is 4 bytes of text. POST /simulate makes it misbehave.
    """
    try:
        options = msgspec.convert({**given, "loras": lora}, EngineOptions)
    except msgspec.ValidationError as error:
        raise click.UsageError(str(error)) from error
    _run(options)


def _run(options: EngineOptions) -> None:
    def ready(running: RunningEngine) -> None:
        gc.freeze()  # what is imported now stays: collections need not walk it
        events = running.engine.publisher
        where = f", KV events on {events.port} and {events.replay_port}" if events else ""
        print(f"engine {options.model} ({options.profile}) at {running.url}{where}", flush=True)

    try:
        uvloop.run(serve(options, ready))
    except PortInUseError as error:
        fail(f"{error}; choose another")
