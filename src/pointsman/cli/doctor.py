"""`pointsman doctor`: what is wrong with a live cluster, and what helps."""

import asyncio
import os
import sys
from pathlib import Path

import click
import msgspec

from pointsman.cli import config_file
from pointsman.cli.config import Config, Engine, Model
from pointsman.cli.config_file import engine_name
from pointsman.cli.messages import fail, reject
from pointsman.cli.named_engines import engines_option, named_engines
from pointsman.cli.shared_options import config_option, http_url
from pointsman.cli.tokenizers import ENGINE, load_model
from pointsman.cli.wiring import engine_keys
from pointsman.cli.yaml_reader import Rejected
from pointsman.control.doctor import (
    Check,
    Diagnosis,
    EngineSummary,
    Finding,
    Scope,
    Severity,
    Target,
    examine,
    worst_first,
)
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.adapters.address import is_loopback
from pointsman.engines.tokenizer import ModelTokenizer, Pieces, Unusable

KEY_VARIABLE = "POINTSMAN_API_KEY"


@click.command(
    epilog="""\b
Try it:
  pointsman doctor --engine http://10.0.0.7:8000 --engine http://10.0.0.8:8000
  pointsman doctor -c pointsman.yaml --gateway http://127.0.0.1:8080 --admin-url http://127.0.0.1:8081

A gateway with keys is sent the one in the environment's POINTSMAN_API_KEY.

Exit codes: 0 no problems (warnings and notes may be), 1 problems, 2 wrong usage or configuration.
"""
)
@config_option("Examine the engines, tokenizers and timeouts of a configuration.")
@engines_option
@click.option("--model", metavar="NAME", help="A model that must be served.")
@click.option("--gateway", metavar="URL", help="A running gateway to look at, too.")
@click.option(
    "--admin-url",
    metavar="URL",
    help="Its admin plane: what it thinks of its engines; which are examined if none is named.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything found, as JSON.")
@click.option(
    "--no-probe", is_flag=True, help="Send no prompts: nothing about hits, streams or tokens."
)
def doctor(
    file: Path | None,
    engines: tuple[str, ...],
    model: str | None,
    gateway: str | None,
    admin_url: str | None,
    as_json: bool,
    no_probe: bool,
) -> None:
    """Examine live engines, and a gateway, for what costs requests or cache hits unseen.

    Each engine gets a handful of tiny prompts of the doctor's own; nothing is changed. It
    takes some seconds, a minute at most.
    """
    if file is None and not (engines or gateway or admin_url):
        fail("nothing to examine: give -c FILE, --engine URL, --gateway URL or --admin-url URL")
    config = _configured(file, engines, model)
    scope = Scope(
        targets=tuple(_target(e, i, config) for i, e in enumerate(config.engines)),
        tokenizers=_tokenizers(config),
        wanted=tuple(
            dict.fromkeys((*([model] if model else ()), *(m.name for m in config.models)))
        ),
        gateway_url=_address("--gateway", gateway),
        gateway_key=os.environ.get(KEY_VARIABLE, ""),
        engine_keys=EngineKeys(engine_keys(config.engines)),
        admin_url=_address("--admin-url", admin_url),
        probing=not no_probe,
    )
    diagnosis = asyncio.run(_examined(scope, shows_progress=not as_json and sys.stderr.isatty()))
    diagnosis = _with_own_findings(diagnosis, config)
    click.echo(_json(diagnosis) if as_json else _text(diagnosis))
    sys.exit(0 if diagnosis.healthy else 1)


def _configured(file: Path | None, urls: tuple[str, ...], model: str | None) -> Config:
    """The file's engines, and those of the command line."""
    config = Config()
    if file is not None:
        try:
            config = config_file.load(file, os.environ, needs_engines=not urls, stands_alone=False)
        except Rejected as rejected:
            reject(rejected.lines(file))
    engines = (*config.engines, *named_engines(urls, model))
    config = msgspec.structs.replace(config, engines=engines)
    for _, problem in config_file.duplicates(config.engines):
        fail(problem)
    return config


def _target(engine: Engine, index: int, config: Config) -> Target:
    return Target(
        name=engine_name(engine, index),
        url=engine.url,
        models=engine.models,
        kv_events=engine.kv_events,
        ranks=engine.ranks,
        pool_idle_s=config.timeouts.engine_idle_s,
    )


def _tokenizers(config: Config) -> dict[str, ModelTokenizer | None]:
    pieces = Pieces(0)
    try:
        return {model.name: _tokenizer(model, pieces) for model in config.models}
    except Unusable as unusable:
        fail(f"a tokenizer cannot be used: {unusable}")


def _tokenizer(model: Model, pieces: Pieces) -> ModelTokenizer | None:
    """None asks the engine."""
    return None if model.tokenizer == ENGINE else load_model(model, pieces)


def _address(option: str, url: str | None) -> str:
    """The address without a /v1 at its end, which clients are used to write."""
    if not url:
        return ""
    return http_url(option, url).rstrip("/").removesuffix("/v1")


async def _examined(scope: Scope, *, shows_progress: bool) -> Diagnosis:
    def on_progress(done: int, total: int) -> None:
        click.echo(f"\r{done} of {total} engines examined", err=True, nl=done == total)

    return await examine(scope, on_progress if shows_progress else None)


def _with_own_findings(diagnosis: Diagnosis, config: Config) -> Diagnosis:
    """What the configuration itself tells."""
    if is_loopback(config.admin.host):
        return diagnosis
    text = f"the admin plane listens on {config.admin.host}, and has no keys"
    remedy = "admin.host: 127.0.0.1, or let no stranger reach that port: it can drain engines"
    found = Finding(Severity.WARNING, Check.GATEWAY, "admin", text, remedy)
    findings = worst_first((*diagnosis.findings, found))
    return msgspec.structs.replace(diagnosis, findings=findings)


# --- output -------------------------------------------------------------------------------


class _Report(msgspec.Struct):
    healthy: bool
    problems: int
    warnings: int
    notes: int
    engines: tuple[EngineSummary, ...]
    findings: tuple[Finding, ...]


def _json(diagnosis: Diagnosis) -> str:
    report = _Report(
        healthy=diagnosis.healthy,
        problems=diagnosis.count(Severity.PROBLEM),
        warnings=diagnosis.count(Severity.WARNING),
        notes=diagnosis.count(Severity.NOTE),
        engines=diagnosis.engines,
        findings=diagnosis.findings,
    )
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _text(diagnosis: Diagnosis) -> str:
    lines = [_engine_line(engine) for engine in diagnosis.engines]
    for finding in diagnosis.findings:
        head = f"{finding.severity}:".ljust(9)
        lines.append(f"{head}{finding.subject}, {finding.check}: {finding.seen}")
        lines.append(f"{'':9}→ {finding.remedy}")
    counts = (_counted(diagnosis.count(severity), severity) for severity in Severity)
    verdict = "healthy" if diagnosis.healthy else "not healthy"
    lines.append(f"{verdict}: {', '.join(counts)}")
    return "\n".join(map(_printable, lines))


def _printable(text: str) -> str:
    """An engine's own words may hold what moves a terminal's cursor."""
    return "".join(each if each.isprintable() else " " for each in text)


def _engine_line(engine: EngineSummary) -> str:
    parts = [engine.name, engine.url, f"{engine.kind} {engine.version}".strip()]
    parts += [", ".join(engine.models[:3])] if engine.models else []
    if engine.block_tokens is not None and engine.kv_blocks is not None:
        parts.append(f"{engine.kv_blocks} blocks of {engine.block_tokens}")
    if engine.latency_s is not None:
        parts.append(f"{1000 * engine.latency_s:.1f} ms")
    if engine.cached_share is not None:
        parts.append(f"hits {engine.cached_share:.0%} of predicted")
    return "  ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
