"""R²SP, Table I: the share of communication in an iteration under BSP."""

from __future__ import annotations

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome
from papers.r2sp import _setting as setting
from papers.r2sp._setting import (
    FITTED_BPS,
    INCEPTION,
    LARGE,
    MODELS,
    PACES,
    PORT_BPS,
    RESNET32,
    VGG16,
    Model,
)

# VGG16's convolutions and one layer for ten classes, which would suffice for CIFAR-10.
_SMALL_VGG16 = 14_719_818
# As the paper prints them.
_SHARES = {"ResNet32": "47.8", "AlexNet": "85.2", "VGG16": "92.8", "Inception-v3": "64.5"}
_FIT = f"{FITTED_BPS / 1e9:.1f} Gbit/s"


def _make(lab: Lab) -> Result:
    models = (RESNET32, INCEPTION) if lab.quick else MODELS
    outcomes = lab.measure(
        [
            setting.trial(
                model,
                PACES["BSP"],
                4 if lab.quick else 20,
                setting.cluster(port_bps, setting.WORKERS_1, setting.SERVERS_1),
                jitter=None,
                gbps=round(port_bps / 1e9, 1),
            )
            for model in models
            for port_bps in (PORT_BPS, FITTED_BPS)
        ]
    )
    rows = []
    for model in models:
        blocked_s = _blocked_s(outcomes, model, FITTED_BPS)
        why = (
            f"theirs: {2 * model.port_bytes / 1e9:.2g} GB, both ways, at a server in "
            f"{model.blocked_s:g} s are {model.goodput_bps / 1e9:.2g} Gbit/s"
        )
        if model not in LARGE:
            left_s = model.blocked_s - blocked_s
            why += f"; {left_s:.2f} s of theirs do not grow with the model's size (inferred)"
        rows.append(
            Row(
                f"{model.name}: communication under BSP",
                f"{_SHARES[model.name]} % ({model.blocked_s:.2f} of {model.iteration_s:.2f} s)",
                f"{_told(model, blocked_s)} at {_FIT}",
                why,
                literal=f"{_told(model, _blocked_s(outcomes, model, PORT_BPS))} at 10 Gbit/s",
                seeds="no jitter",
            )
        )
    small_bps = VGG16.goodput_bps * _SMALL_VGG16 / VGG16.elements
    notes = (
        "8 workers, 2 servers. A batch computes for what Table I leaves beside communication, and "
        "communication is what an iteration takes beyond that. Literal: ports of 10 Gbit/s, which "
        f"ours fills. Ours: {_FIT}, the geometric mean of what the paper's framework moved for its "
        "three large models, so fitted.",
        "Sizes are those of models for ImageNet although the paper names CIFAR-10 for all but "
        f"Inception-v3: of {_SMALL_VGG16 / 1e6:.1f} M parameters, VGG16's for CIFAR-10, its time "
        f"would make {small_bps / 1e9:.2f} Gbit/s, a tenth of Inception-v3's, whose size is sure.",
    )
    return Result(tuple(rows), notes)


def _blocked_s(outcomes: list[Outcome], model: Model, port_bps: float) -> float:
    gbps = round(port_bps / 1e9, 1)
    return setting.steady_s(outcomes, model=model.name, gbps=gbps) - model.compute_s


def _told(model: Model, blocked_s: float) -> str:
    iteration_s = model.compute_s + blocked_s
    return f"{blocked_s / iteration_s:.1%} ({blocked_s:.3g} of {iteration_s:.3g} s)"


EXPERIMENTS = (Experiment("r2sp/table1", "the part of communication under BSP", _make),)
