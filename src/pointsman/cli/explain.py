"""`pointsman explain`: why a request went where it went, or where it would go."""

import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click
import msgspec

from pointsman.cli.messages import fail
from pointsman.cli.shared_options import ADMIN_URL, admin_url_option, http_url
from pointsman.core.decision import Decision, Ineligible
from pointsman.core.row import Row
from pointsman.core.scheme import Unit
from pointsman.decoding import Undecodable, decoded, decoded_or_none

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from rich.table import Table

TIMEOUT_S = 10.0

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""A decision over all nodes there may be has a few MiB."""

READ_BYTES = 64 * 1024

T = TypeVar("T")


@click.command(
    epilog="""\b
Try it:
  pointsman explain                                the latest decision
  pointsman explain d1d4030796a9887100000001       every attempt of this request
  pointsman explain --prompt 'Which track?'        where this would go now
  pointsman explain --body request.json --json     the same for a whole request, as JSON

\b
Columns, of each candidate:
  hit, new   tokens of the prompt that it has cached, and that it would have to compute
  running    requests there
  queue      ms until it can begin with this one
  prefill    ms to compute the prompt's new tokens
  room       ms until it has memory for it, and runs fewer than it can
  decode     ms for the answer, as long as answers have been of late
  stall      ms for which its other requests, and the next to come, would stand still in all
  slowed     ms by which they would be slower afterwards, in all
  score      what the policy makes of these; lower is better

Exit codes: 0 shown, 1 no such decision, 2 wrong usage or no admin plane.
"""
)
@click.argument("request_id", required=False)
@click.option(
    "--body",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A request body to place; - is stdin.",
)
@click.option("--prompt", metavar="TEXT", help="A chat message to place.")
@click.option("--model", metavar="NAME", help="Model for --prompt.  [default: the only one served]")
@click.option("--path", metavar="ROUTE", help="Route of --body.  [default: by its shape]")
@admin_url_option("The admin plane.")
@click.option("--json", "as_json", is_flag=True, help="The decisions as JSON.")
def explain(
    request_id: str | None,
    file: Path | None,
    prompt: str | None,
    model: str | None,
    path: str | None,
    admin_url: str,
    as_json: bool,
) -> None:
    """Show every candidate's cost and why one was chosen.

    With REQUEST_ID (the answer's x-request-id) the decisions that were made; with --body or
    --prompt the decision that would be made now, without making it; else the latest one.
    """
    if sum(given is not None for given in (request_id, file, prompt)) > 1:
        raise click.UsageError("Give one of REQUEST_ID, --body and --prompt.")
    if model is not None and prompt is None:
        raise click.UsageError("--model goes with --prompt; a --body names its own.")
    if path is not None and file is None:
        raise click.UsageError("--path goes with --body.")
    admin = http_url("--admin-url", admin_url)
    made = file is None and prompt is None
    if made:
        decisions = _made(admin, request_id)
    else:
        decisions = [_would_be_made(admin, _body(file, prompt, model), path)]
    if as_json:
        told = msgspec.json.encode(decisions, enc_hook=Row.fields)
        click.echo(msgspec.json.format(told, indent=2))
    else:
        _print(decisions, made=made)


def _made(admin: str, request_id: str | None) -> list[Decision]:
    """Those about a request, else the latest one."""
    if request_id is not None:
        url = f"{admin}/pointsman/v1/decisions/{quote(request_id, safe='')}"
        return _ask(url, _Many).decisions
    decisions = _ask(f"{admin}/pointsman/v1/decisions?limit=1", _Many).decisions
    if not decisions:
        fail("nothing has been decided yet; --prompt TEXT tries", code=1)
    return decisions


def _would_be_made(admin: str, body: bytes, path: str | None) -> Decision:
    """The one about a request's body, if it came now."""
    if path is not None:
        body = msgspec.json.encode({"path": path, "body": msgspec.Raw(body)})
    one = _ask(f"{admin}/pointsman/v1/explain", _One, body)
    for name, doubt in one.index_doubts.items():
        click.echo(f"{name} is credited by history: {doubt}.", err=True)
    return one.decision


class _One(msgspec.Struct):
    decision: Decision
    index_doubts: dict[str, str] = {}


class _Many(msgspec.Struct):
    decisions: list[Decision]


class _Problem(msgspec.Struct):
    message: str
    code: str | None = None


class _Refusal(msgspec.Struct):
    error: _Problem


def _body(file: Path | None, prompt: str | None, model: str | None) -> bytes:
    if file is None:
        request: dict[str, object] = {"messages": [{"role": "user", "content": prompt}]}
        return msgspec.json.encode({"model": model, **request} if model else request)
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}")


def _ask(url: str, into: type[T], body: bytes | None = None) -> T:
    """The answer; leaves with the admin plane's own words if it is a refusal."""
    status, said = _answer(url, body)
    if status >= 400:
        problem = _problem(said, status)
        if problem.code == "route_not_found":  # the gateway's own word: no admin plane has it
            fail(f"{url} is the API, not the admin plane (by default {ADMIN_URL})")
        fail(problem.message, code=1 if status == 404 else 2)
    try:
        return decoded(msgspec.json.Decoder(into, dec_hook=_row).decode, said)
    except Undecodable:
        fail(f"{url} answers as no admin plane does (by default it is at {ADMIN_URL})")


def _answer(url: str, body: bytes | None) -> tuple[int, bytes]:
    """Of whatever status; leaves where there is none."""
    import urllib.error  # noqa: PLC0415 - 30 ms that `--help` need not spend
    import urllib.request  # noqa: PLC0415
    from http.client import HTTPException  # noqa: PLC0415

    request = urllib.request.Request(url, data=body)  # noqa: S310 - the user's own URL
    try:
        try:
            reply = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - as above
        except urllib.error.HTTPError as refusal:
            reply = refusal
        with reply:
            return reply.status, _whole(reply)
    except (HTTPException, OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        cause = getattr(cause, "strerror", None) or cause
        fail(f"no admin plane at {url}: {cause}; is `pointsman up` or `serve` running?")


def _whole(reply: "HTTPResponse") -> bytes:
    """What it says to the end. Raises TimeoutError where there is none: the timeout of a connection
    is one of its silence."""
    until_s, said = monotonic() + TIMEOUT_S, bytearray()
    while piece := reply.read1(READ_BYTES):
        said += piece
        if len(said) > ANSWER_BYTES_MAX or monotonic() > until_s:
            raise TimeoutError("its answer does not end")
    return bytes(said)


def _row(_kind: type[Row], told: dict[str, Any]) -> Row:
    """A candidate of a decision."""
    return Row(**told)


def _problem(body: bytes, status: int) -> _Problem:
    refusal = decoded_or_none(msgspec.json.Decoder(_Refusal).decode, body)
    return refusal.error if refusal else _Problem(f"the admin plane answers {status}")


# --- for people ---------------------------------------------------------------------------

_KNOWN_BY: Mapping[Unit, str] = MappingProxyType(
    {Unit.TOKENS: "token ids", Unit.BYTES: "text; its tokens are an estimate"}
)
_TERMS = ("queue_s", "prefill_s", "room_wait_s", "decode_s", "stall_s", "slowdown_s")
_HEADERS = ("hit", "new", "running", "queue", "prefill", "room", "decode", "stall", "slowed")

_INELIGIBLE: Mapping[Ineligible, str] = MappingProxyType(
    {
        Ineligible.MODEL: "does not serve this model",
        Ineligible.POOL: "is in another pool",
        Ineligible.ZONE: "is in another zone",
        Ineligible.LABELS: "lacks a label that is required",
        Ineligible.RESPONSE: "does not keep the response that this goes on from",
        Ineligible.CONTEXT: "its context is too short for this prompt",
        Ineligible.JOINING: "has not described itself yet",
        Ineligible.OPEN: "has failed, and is left alone for a while",
        Ineligible.SHARE: "is suspected, on trial or warming up, and has its share for now",
        Ineligible.DRAINING: "is draining",
        Ineligible.WITHHELD: "is warming up: it computes hot prefixes before it gets requests",
        Ineligible.TRIED: "it or another rank of its server has failed this request already",
        Ineligible.CONCURRENCY: "has as many requests as it may",
    }
)

_COLUMNS_WIDE = 100
"""From here on there is room for two blanks between columns; with one, 80 are enough."""

_COLUMNS_MIN = 110
"""Width of a table that goes into a pipe or a file, where nobody's terminal is the measure."""


def _print(decisions: list[Decision], *, made: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - only where a table is drawn
    from rich.markup import escape  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console = Console(width=_COLUMNS_MIN)
    for decision in decisions:
        where = f" on {escape(decision.node)}" if decision.node else ""
        title = escape(decision.request_id) if made else "if it came now"
        console.print(
            f"[bold]{title}[/bold]  {escape(decision.model)}: "
            f"[bold]{decision.ruling}{where}[/bold]",
            highlight=False,
        )
        console.print(
            f"why    {decision.why}\n"
            f"policy {decision.policy}, attempt {decision.attempt}, "
            f"waited {decision.queued_s * 1_000:.1f} ms\n"
            f"tokens {decision.prompt_tokens} prompt, {decision.hit_tokens} of them cached there, "
            f"{decision.output_tokens_expected} output expected\n"
            f"prompt known by its {_KNOWN_BY[decision.prompt_unit]}",
            highlight=False,
            markup=False,
        )
        if decision.candidates:
            console.print(_table(decision, gap=2 if console.width >= _COLUMNS_WIDE else 1))
        console.print(_remarks(decision), highlight=False, markup=False)


def _table(decision: Decision, *, gap: int) -> "Table":
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    table.add_column("node", no_wrap=True)
    for header in (*_HEADERS, "score"):
        table.add_column(header, justify="right", no_wrap=True)
    for candidate in decision.candidates:
        style = "bold" if candidate.node == decision.node else ""
        table.add_row(*_cells(candidate), style=style)
    return table


def _cells(candidate: Row) -> list[str]:
    counts = [candidate.hit_tokens, candidate.new_tokens, candidate.inflight]
    terms = [_milliseconds(getattr(candidate, term)) for term in _TERMS]
    name = candidate.node if candidate.calibrated else f"{candidate.node}*"
    return [name, *map(str, counts), *terms, f"{candidate.score:.4g}"]


def _milliseconds(value_s: float) -> str:
    """No more digits than a column of 80 has room for."""
    value_ms = value_s * 1_000
    return f"{value_ms:.1f}" if value_ms < 10_000 else f"{value_ms:.0f}"


def _remarks(decision: Decision) -> str:
    lines = []
    if decision.candidates:
        lines.append("hit and new in tokens, times in ms, score: lower is better")
    if not all(candidate.calibrated for candidate in decision.candidates):
        lines.append("* speeds not learned yet")
    if decision.candidate_count > len(decision.candidates) > 0:
        lines.append(f"{decision.candidate_count} candidates, the best are shown")
    if decision.tie_count > 1:
        lines.append(f"{decision.tie_count} were as good; the one unused for longest was taken")
    lines += [f"not {each.node}: {_INELIGIBLE[each.why]}" for each in decision.excluded]
    return "\n".join(lines) + "\n"
