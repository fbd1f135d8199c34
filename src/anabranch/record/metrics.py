"""A run's status as Prometheus reads it: the text exposition format, version 0.0.4. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from anabranch.record.status import SITE_STATES, Status, latest_loss

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Samples = Iterable[tuple[Mapping[str, str], float]]


def exposition(status: Status) -> str:
    """Return a status's metrics.

    >>> text = exposition(Status(overlay="group", phase="running", running_s=2.5, plan="star",
    ...                          plan_version=1, exchanges=3))
    >>> print(*text.splitlines()[:3], sep="\\n")
    # HELP anabranch_running_seconds Time since the run began; 0 before.
    # TYPE anabranch_running_seconds gauge
    anabranch_running_seconds 2.5
    """
    states = [site.state for site in status.sites]
    by_state = [({"state": state}, float(states.count(state))) for state in SITE_STATES]
    latest = {site.name: latest_loss(site) for site in status.sites}
    losses = [({"site": name}, loss) for name, loss in latest.items() if loss is not None]
    seen = {site.name: site.accuracy for site in status.sites}
    accuracies = [({"site": name}, each) for name, each in seen.items() if each is not None]
    longest = {wait.site: wait.seconds for wait in reversed(status.waits)}
    awaited = [({"site": name}, seconds) for name, seconds in longest.items()]
    ends = [({"source": link.source, "target": link.target}, link) for link in status.links]
    families: list[tuple[str, str, str, _Samples]] = [
        ("running_seconds", "gauge", "Time since the run began; 0 before.", _one(status.running_s)),
        ("sites", "gauge", "Sites of the overlay, by their state.", by_state),
        ("site_awaited_seconds", "gauge", "How long others have waited for a site.", awaited),
        ("site_loss", "gauge", "Latest training loss that a site told of.", losses),
        ("site_accuracy", "gauge", "Latest accuracy that a site saw of its model.", accuracies),
        (
            "exchanges_total",
            "counter",
            "Exchanges whose result a member holds, since the scheduler started.",
            _one(status.exchanges),
        ),
        (
            "exchanged_bytes_total",
            "counter",
            "Bytes of the buffers of those exchanges, once each.",
            _one(status.exchanged_bytes),
        ),
        (
            "incomplete_results_total",
            "counter",
            "Exchanges whose result lacks contributions of members.",
            _one(status.incomplete),
        ),
        (
            "updates_total",
            "counter",
            "Updates that became part of a served model.",
            _one(status.updates),
        ),
        ("plan_version", "gauge", "Version of the plan in force.", _one(status.plan_version)),
        ("replans_total", "counter", "Plans issued after the first.", _one(status.replans)),
        ("site_losses_total", "counter", "Times that a site was lost.", _one(status.losses)),
        (
            "refused_messages_total",
            "counter",
            "Messages that were refused.",
            _one(status.refused),
        ),
        (
            "link_rate_bits_per_second",
            "gauge",
            "What a link was given or measured to carry; none where that is only assumed.",
            [
                ({**of, "basis": link.basis}, link.rate_bps)
                for of, link in ends
                if link.rate_bps is not None
            ],
        ),
        (
            "link_latency_seconds",
            "gauge",
            "One-way latency of a link, as given or measured.",
            [(of, link.latency_s) for of, link in ends if link.latency_s is not None],
        ),
    ]
    lines = []
    for name, kind, help, samples in families:
        lines += [f"# HELP anabranch_{name} {help}", f"# TYPE anabranch_{name} {kind}"]
        lines += [
            f"anabranch_{name}{_labels(labels)} {_number(value)}" for labels, value in samples
        ]
    return "\n".join(lines) + "\n"


def _one(value: float) -> _Samples:
    return [({}, value)]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
    return str(int(value)) if value == int(value) else repr(float(value))


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
