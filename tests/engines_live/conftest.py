"""Real engines, each started once for all tests.

Tests that end an engine start one of their own: the launcher forks it in seconds.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from pointsman.cli.config import Admin, Config, Limits, Listen, Log, Model
from tests.support.live_engines import (
    LLAMACPP_INSTALLED,
    START_S_MAX,
    VLLM_INSTALLED,
    LiveEngine,
    VllmServers,
    make_model,
    running_llamacpp,
    running_simulated,
    vllm_servers,
)
from tests.support.ports import free_ports

KV_TOKENS = 4096
"""Of each vLLM server: 128 blocks, so that a hundred requests already drive blocks out."""

CONTEXT_TOKENS = 1024
SEQUENCES_MAX = 8
QUEUED_MAX = 24
SIMULATED = tuple(
    f"--model tiny --block-size 32 --kv-blocks 128 --max-model-len {CONTEXT_TOKENS} "
    f"--max-num-seqs {SEQUENCES_MAX} --kv-events-port 0".split()
)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(2 * START_S_MAX))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not LLAMACPP_INSTALLED.exists():
        pytest.skip("NO REAL ENGINES: not tested against llama.cpp; `make engines` installs it")
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def llamacpp(model: Path) -> Iterator[LiveEngine]:
    with running_llamacpp(model) as engine:
        yield engine


@pytest.fixture(scope="session")
def launcher(model: Path) -> Iterator[VllmServers]:
    if not VLLM_INSTALLED.exists():
        pytest.skip("NO REAL vLLM: not tested against it; `make engines` says what is missing")
    settings = {
        "--max-model-len": CONTEXT_TOKENS,
        "--max-num-seqs": SEQUENCES_MAX,
        "--max-num-batched-tokens": CONTEXT_TOKENS,
        "--num-gpu-blocks-override": KV_TOKENS // 32,
        "--max-num-queued-reqs": QUEUED_MAX,
    }
    arguments = [part for name, value in settings.items() for part in (name, str(value))]
    with vllm_servers(model, *arguments) as servers:
        yield servers


@pytest.fixture(scope="session")
def vllms(launcher: VllmServers) -> Sequence[LiveEngine]:
    """Two servers, which no test may harm."""
    engines = [launcher.start(events=free_ports(2)) for _ in range(2)]
    for engine in engines:
        engine.until_healthy()
    return engines


@pytest.fixture
def vllm_config(model: Path) -> Callable[[str], Config]:
    """A configuration that knows prompts as token ids: from the model's `folder`, the `engine`,
    or another folder."""

    def config(tokenizer: str) -> Config:
        return Config(
            listen=Listen(port=0, reply_headers=True),
            admin=Admin(port=0),
            limits=Limits(connections_max=1_000),
            log=Log(level="warning", access="none"),
            models=(Model("tiny", str(model) if tokenizer == "folder" else tokenizer),),
        )

    return config


class Subject(msgspec.Struct, frozen=True):
    """An engine as the conformance suite sees it. `hits_exactly`: its events tell, in blocks,
    what it will find cached."""

    kind: str
    engine: LiveEngine
    hits_exactly: bool


@pytest.fixture(scope="session", params=["simulated", "llamacpp", "vllm"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Each kind of engine in turn. All serve `tiny` with 1,024 tokens of context."""
    kind: str = request.param
    if kind == "vllm":
        return Subject(kind, request.getfixturevalue("vllms")[0], True)
    return Subject(kind, request.getfixturevalue(kind), kind == "simulated")


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with running_simulated(tmp_path_factory.mktemp("simulated"), *SIMULATED) as engine:
        yield engine


@pytest.fixture(params=["simulated", "llamacpp", "vllm"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> Iterator[LiveEngine]:
    """Each kind of engine in turn, to be ended by a test."""
    kind: str = request.param
    match kind:
        case "simulated":
            with running_simulated(tmp_path, *SIMULATED) as engine:
                yield engine
        case "llamacpp":
            with running_llamacpp(model) as engine:
                yield engine
        case _:
            launcher: VllmServers = request.getfixturevalue("launcher")
            engine = launcher.start(events=free_ports(2))
            engine.until_healthy()
            yield engine
            with contextlib.suppress(ProcessLookupError):
                engine.kill()
