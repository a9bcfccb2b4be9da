"""The files that DEPLOY.md gives to operators fit the process that they deploy and watch."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from pointsman.cli import config_file
from pointsman.core.errors import EndCause, Reason
from pointsman.core.events import IndexTrust
from pointsman.core.health import Health
from tests.support.cluster import Cluster, running_cluster
from tests.tidy.documents import leads_somewhere
from tests.tidy.source_tree import ROOT, expect_none, name_of, project_files

DOCS = ROOT / "docs"
METRIC = re.compile(r"\bpointsman_\w+(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)(?:=~|!=|=)\"([^\"]*)\"")
ELSEWHERE = ("pointsman_tokenizer_", "pointsman_access_log_")
"""Of processes that have a tokenizer, or write an access log."""
VALUES: dict[str, type[Health | EndCause | Reason | IndexTrust]] = {
    "state": Health,
    "end": EndCause,
    "reason": Reason,
    "trust": IndexTrust,
}


def kubernetes() -> dict[str, Any]:
    objects = yaml.safe_load_all((DOCS / "kubernetes.yaml").read_text())
    return {one["kind"]: one for one in objects}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DOCS / "dashboard.json").read_text())["panels"]
    return found


def test_kubernetes_is_given_a_configuration_that_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "pointsman.yaml"
    file.write_text(kubernetes()["ConfigMap"]["data"]["pointsman.yaml"])
    config = config_file.load(file, {})
    spec = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > config.timeouts.drain_s
    (container,) = spec["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [
        config.listen.port,
        config.admin.port,
    ]


def test_an_alert_names_a_section_that_helps() -> None:
    expect_none(
        f"{alert['alert']}: {alert['annotations']['runbook']}"
        for alert in alerts()
        if not leads_somewhere(ROOT / "alerts", alert["annotations"]["runbook"])
    )


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in panels()]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({(place["x"], place["y"]) for place in places}) == len(places) == len(panels())
    assert len({panel["id"] for panel in panels()}) == len(panels())


async def test_the_metrics_that_documents_name_exist() -> None:
    async with running_cluster(1) as cluster:
        await cluster.complete("x")
        assert (await cluster.post("/nowhere", {})).status == 404
        known = await metrics(cluster)
    expect_none(problem for where, text in _named() for problem in _unknown(where, text, known))


async def metrics(cluster: Cluster) -> dict[str, set[str]]:
    """The labels of every metric; none of one without a series, of which nothing is known."""
    async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
        page = await reply.text()
    known: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        labels = {label for sample in family.samples for label in sample.labels}
        for name in {family.name, *_suffixed(family.name, family.type)}:
            known[name] = labels
    return known


def _suffixed(name: str, kind: str) -> list[str]:
    match kind:
        case "counter":
            return [f"{name}_total"]
        case "histogram":
            return [f"{name}_bucket", f"{name}_sum", f"{name}_count"]
        case _:
            return []


def _named() -> Iterator[tuple[str, str]]:
    """Everything that names metrics, and where it stands."""
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"panel '{panel['title']}'", target["expr"]
    for document in project_files(".md"):
        yield name_of(document), document.read_text()


def _unknown(where: str, text: str, known: dict[str, set[str]]) -> Iterator[str]:
    for found in METRIC.finditer(text):
        name, _, _ = found[0].partition("{")
        if name.endswith("_") or name.startswith(ELSEWHERE):
            continue  # `pointsman_node_gpu_*` stands for many
        if name not in known:
            yield f"{where}: there is no metric {name}"
        for label, value in MATCHER.findall(found[1] or ""):
            if known.get(name) and label not in known[name]:
                yield f"{where}: {name} has no label {label}"
            if label in VALUES:
                wrong = set(value.split("|")) - {member.value for member in VALUES[label]}
                yield from (f"{where}: {name}: no {label} is {one}" for one in sorted(wrong))
