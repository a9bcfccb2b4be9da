"""llama.cpp's own HTTP server, from the prebuilt `xllamacpp`, as a process.

    python llamacpp_server.py MODEL.gguf PORT [NAME SLOT_TOKENS]

Four slots, of 1,024 tokens each unless told otherwise; every route that Pointsman reads is on.
SIGTERM ends it.
Runs in the engines' own environment.
"""

import os
import signal
import sys
import threading

import xllamacpp

SLOTS = 4


def main(model: str, port: int, name: str = "tiny", slot_tokens: int = 1024) -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = {name}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * slot_tokens
    parameters.kv_unified = False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_threads_http = 16
    parameters.endpoint_slots = parameters.endpoint_props = parameters.endpoint_metrics = True
    parameters.cache_prompt = parameters.cont_batching = parameters.use_jinja = True
    parameters.cache_ram_mib = 64
    parameters.warmup = parameters.ui = False
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = xllamacpp.Server(parameters)  # noqa: F841 - listens in threads of its own
    while not ended.wait(0.5):
        pass
    os._exit(0)  # at once: `server` would wait for what it still streams


if __name__ == "__main__":
    if len(sys.argv) > 3:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], int(sys.argv[2]))
