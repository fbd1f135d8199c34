"""A run's status for Prometheus, in the text format of prometheus-client. Pure.

Needs ``pip install 'anabranch[metrics]'``; only a scheduler with ``--metrics`` imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from anabranch.log.status import SITE_STATES, Status, latest_loss

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def exposition(status: Status) -> str:
    """Return a status's metrics.

    >>> text = exposition(Status(overlay="group", phase="running", running_s=2.5, plan="star",
    ...                          plan_version=1, exchanges=3))
    >>> print(*text.splitlines()[:3], sep="\\n")
    # HELP anabranch_running_seconds Time since the run began; 0 before.
    # TYPE anabranch_running_seconds gauge
    anabranch_running_seconds 2.5
    """
    return generate_latest(_Snapshot(status)).decode()


@dataclass(frozen=True)
class _Snapshot:
    """A collector of prometheus-client over one status, so that no metric outlives its page."""

    status: Status

    def collect(self) -> Iterator[Metric]:
        now = self.status
        states = [site.state for site in now.sites]
        losses = {site.name: latest_loss(site) for site in now.sites}
        yield _gauge("running_seconds", "Time since the run began; 0 before.", now.running_s)
        yield _gauges(
            "sites",
            "Sites of the overlay, by their state.",
            ("state",),
            {(state,): states.count(state) for state in SITE_STATES},
        )
        yield _gauges(
            "site_awaited_seconds",
            "How long others have waited for a site.",
            ("site",),
            {(wait.site,): wait.seconds for wait in reversed(now.waits)},
        )
        yield _gauges(
            "site_loss",
            "Latest training loss that a site told of.",
            ("site",),
            {(name,): loss for name, loss in losses.items()},
        )
        yield _gauges(
            "site_accuracy",
            "Latest accuracy that a site saw of its model.",
            ("site",),
            {(site.name,): site.accuracy for site in now.sites},
        )
        yield _counter(
            "exchanges",
            "Exchanges whose result a member holds, since the scheduler started.",
            now.exchanges,
        )
        yield _counter(
            "exchanged_bytes",
            "Bytes of the buffers of those exchanges, once each.",
            now.exchanged_bytes,
        )
        yield _counter(
            "incomplete_results",
            "Exchanges whose result lacks contributions of members.",
            now.incomplete,
        )
        yield _counter("updates", "Updates that became part of a served model.", now.updates)
        yield _gauge("plan_version", "Version of the plan in force.", now.plan_version)
        yield _counter("replans", "Plans issued after the first.", now.replans)
        yield _counter("site_losses", "Times that a site was lost.", now.losses)
        yield _counter("refused_messages", "Messages that were refused.", now.refused)
        yield _gauges(
            "link_rate_bits_per_second",
            "What a link was given or measured to carry; none where that is only assumed.",
            ("source", "target", "basis"),
            {(link.source, link.target, link.basis): link.rate_bps for link in now.links},
        )
        yield _gauges(
            "link_latency_seconds",
            "One-way latency of a link, as given or measured.",
            ("source", "target"),
            {(link.source, link.target): link.latency_s for link in now.links},
        )


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"anabranch_{name}", help, value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"anabranch_{name}", help, value)  # adds `_total`


def _gauges(
    name: str, help: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float | None]
) -> Metric:
    """Return a gauge for each set of labels that has a value."""
    family = GaugeMetricFamily(f"anabranch_{name}", help, labels=labels)
    for of, value in values.items():
        if value is not None:
            family.add_metric(of, value)
    return family
