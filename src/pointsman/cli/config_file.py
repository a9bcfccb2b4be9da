"""A configuration file, read and checked as a whole."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pointsman.cli.config import Config, Engine, Key
from pointsman.cli.control_address import UnusableControl, control_address, read_secret
from pointsman.cli.tokenizers import model_problems
from pointsman.cli.yaml_reader import Document, Problem, Rejected, read, read_text
from pointsman.engines.adapters.address import Door, door_problem, is_loopback, server_of

COMMENTS_S_MIN = 0.25
"""How exactly the gateway waits."""


def load(
    path: Path,
    environment: Mapping[str, str],
    *,
    needs_engines: bool = True,
    stands_alone: bool = True,
    opens_tokenizers: bool = False,
) -> Config:
    """The file's configuration. Raises Rejected with every problem found, in its order.

    What does not stand alone may still be opened or closed to strangers by its caller.
    `opens_tokenizers` reads tokenizers as a whole, which takes a second each.
    """
    missing = "no such file; `pointsman init` writes one"
    text = read_text(path, if_missing=missing, is_kept=True)
    config, document = read(text, Config, environment, further=_duplicates)
    problems = list(_inconsistencies(config, document, needs_engines))
    for where, problem in model_problems(config.models, opens=opens_tokenizers):
        problems.append(Problem(*document.nearest(*where), problem))
    if stands_alone and (problem := openness_problem(config)):
        problems.append(Problem(*document.nearest("listen", "host"), f"listen.host: {problem}"))
    if problems:
        raise Rejected(problems)
    return config


def _duplicates(config: Config, document: Document) -> Iterator[Problem]:
    for path, problem in (*duplicates(config.engines), *_duplicate_keys(config.keys)):
        yield Problem(*document.nearest(*path), problem)


def _inconsistencies(config: Config, document: Document, needs_engines: bool) -> Iterator[Problem]:
    """Problems that no field shows alone."""
    at = document.nearest
    if config.listen.port == config.admin.port != 0:
        yield Problem(*at("admin", "port"), f"admin.port: {config.admin.port} is listen.port too")
    if needs_engines and ("engines",) not in document.positions:
        yield Problem(1, 1, "no engines: list them under 'engines:' ('engines: []' means none yet)")
    for path, problem in _contradictions(config):
        yield Problem(*at(*path), problem)


def _contradictions(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where two bounds exclude each other, and the sentence for it."""
    limits, timeouts = config.limits, config.timeouts
    if limits.body_bytes_max > limits.bodies_bytes_max:
        text = "limits.bodies_bytes_max is below limits.body_bytes_max: no such body could come in"
        yield ("limits", "bodies_bytes_max"), text
    if timeouts.body_gap_s > timeouts.body_s:
        text = "timeouts.body_gap_s is above timeouts.body_s, which would be the only bound"
        yield ("timeouts", "body_gap_s"), text
    if 0 < config.listen.keep_alive_comments_s < COMMENTS_S_MIN:
        text = f"listen.keep_alive_comments_s is below {COMMENTS_S_MIN}; 0 is off"
        yield ("listen", "keep_alive_comments_s"), text
    if config.admission.yellow_share > config.admission.red_share:
        text = "admission.yellow_share is above admission.red_share: low priority comes first"
        yield ("admission", "yellow_share"), text
    if problem := agents_problem(config):
        yield ("agents", "listen"), problem
    yield from own_addresses(config)


def own_addresses(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where an engine is this gateway itself, and the sentence for it."""
    own = doors(config)
    for index, engine in enumerate(config.engines):
        if problem := door_problem(engine.url, own):
            yield ("engines", index, "url"), f"engines[{index}].url: {problem}"


def doors(config: Config) -> tuple[Door, ...]:
    """Where the gateway listens for HTTP."""
    listen, admin = config.listen, config.admin
    return (
        Door("listen.port", listen.host, listen.port),
        Door("admin.port", admin.host, admin.port),
    )


def duplicates(engines: Sequence[Engine]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where an engine has the address or the name of one before it, or another key for the same
    server, and the sentence for it."""
    seen_urls: dict[str, int] = {}
    seen_names: dict[str, int] = {}
    seen_keys: dict[str, str] = {}
    for index, engine in enumerate(engines):
        if (first := seen_urls.setdefault(engine.url, index)) != index:
            text = f"engines[{index}].url: {engine.url} is engines[{first}] already"
            yield ("engines", index, "url"), text
        server, key = server_of(engine.url), engine.api_key
        if key and seen_keys.setdefault(server, key) != key:
            text = f"engines[{index}].api_key: another entry for {server} has another key"
            yield ("engines", index, "api_key"), text
        name = engine_name(engine, index)
        if (first := seen_names.setdefault(name, index)) != index:
            text = f"engines[{index}].name: '{name}' is the name of engines[{first}] already"
            yield ("engines", index, "name"), text


def openness_problem(config: Config) -> str:
    """What must be configured before strangers may connect; empty if none can, or all may."""
    listen = config.listen
    if config.keys or listen.api_keys or listen.open or is_loopback(listen.host):
        return ""
    return (
        f"without API keys everyone who reaches {listen.host} could use the engines; "
        "give keys (`pointsman keys new NAME`), or listen.open: true"
    )


def agents_problem(config: Config) -> str:
    """What must be configured before agents may connect; empty if nothing."""
    if not config.agents.listen:
        return ""
    try:
        address = control_address(config.agents.listen)
        secret = read_secret(config.agents.secret_file)
    except UnusableControl as unusable:
        return f"agents: {unusable}"
    if secret or address.path or is_loopback(address.host):
        return ""
    return (
        f"agents.listen: without a secret everyone who reaches {address.host} could add engines; "
        "give agents.secret_file"
    )


def _duplicate_keys(keys: Sequence[Key]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where a key has the name or hash of one before it, and the sentence for it."""
    seen_names: dict[str, int] = {}
    seen_hashes: dict[str, int] = {}
    for index, key in enumerate(keys):
        if (first := seen_hashes.setdefault(key.hash.lower(), index)) != index:
            yield ("keys", index, "hash"), f"keys[{index}].hash is that of keys[{first}] already"
        if (first := seen_names.setdefault(key.name, index)) != index:
            text = f"keys[{index}].name: '{key.name}' is the name of keys[{first}] already"
            yield ("keys", index, "name"), text


def engine_name(engine: Engine, index: int) -> str:
    """Its name, or engine-1, engine-2 …: an address must not reach clients by a header."""
    return engine.name or f"engine-{index + 1}"
