"""R²SP, Table II: the slowdown of a client while 127 others communicate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.pace import Bsp
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Label, Outcome, Trial
from papers.r2sp import _setting as setting

_CLIENTS = 128
_SERVER_BPS = 10e9
_CLIENT_BPS = 100e6  # the paper: less than that


@dataclass(frozen=True, slots=True)
class _Model:
    """A model of the paper's Table II, which gives no sizes.

    Args:
        name: the paper's.
        elements: its parameters.
        contended_s, alone_s: a client's communication in an iteration, among 128 and alone.
        slower: the first over the second, as the paper prints it.
    """

    name: str
    elements: int
    contended_s: float
    alone_s: float
    slower: str

    @property
    def alone_bps(self) -> float:
        """The rate at which a client alone pushed and pulled, bit/s."""
        return 2 * 32 * self.elements / self.alone_s

    @property
    def server_bps(self) -> float:
        """The rate at which the server served all clients together, bit/s."""
        return _CLIENTS * 2 * 32 * self.elements / self.contended_s


_RESNET20 = _Model("ResNet20", 269_722, 1.98, 0.13, "15.2x")
# Of the three only ResNet20's size is known. At its rate the other two would have 62,000
# parameters, as many as LeNet-5 for colour images.
_CNN = _Model("CNN", 62_006, 1.02, 0.03, "34.0x")
_LSTM = _Model("LSTM", 62_006, 0.43, 0.03, "14.3x")


@dataclass(frozen=True, slots=True)
class _Case:
    """A simulated hypothesis about a model's times.

    Args:
        name: of the hypothesis.
        model: the model.
        elements: its assumed parameters.
        server_bps, client_bps: rates of the ports, each way, bit/s.
        why: the conclusion.
    """

    name: str
    model: _Model
    elements: int
    server_bps: float
    client_bps: float
    why: str


def _as_stated(model: _Model) -> _Case:
    why = "128 clients of 100 Mbit/s need 1.28 times the port, so bandwidth does not explain it"
    return _Case("as stated", model, model.elements, _SERVER_BPS, _CLIENT_BPS, why)


def _faster_clients(model: _Model) -> _Case:
    client_bps = _SERVER_BPS * model.contended_s / model.alone_s / _CLIENTS
    elements = round(client_bps * model.alone_s / 64)
    why = f"faster clients are fitted: the model would need {elements / 1e6:.2g} M parameters"
    if model is _RESNET20:
        why += f", and has {model.elements / 1e6:.2g} M"
    return _Case("faster clients", model, elements, _SERVER_BPS, client_bps, why)


def _slower_server(model: _Model) -> _Case:
    own = f"{_rate(model.alone_bps)} and {_rate(model.server_bps)}"
    why = (
        "its two times"
        if model is _RESNET20
        else f"ResNet20's two times, where its own would imply {own}"
    )
    rates_bps = _RESNET20.server_bps, _RESNET20.alone_bps
    return _Case(
        "slower server",
        model,
        model.elements,
        *rates_bps,
        f"the slower server's rates are fitted to {why}",
    )


def _make(lab: Lab) -> Result:
    models = (_CNN,) if lab.quick else (_CNN, _LSTM, _RESNET20)
    suppose = (_as_stated, _faster_clients, _slower_server)
    cases = [case(model) for model in models for case in suppose]
    outcomes = lab.measure([_trial(case, clients) for case in cases for clients in (1, _CLIENTS)])
    rows = []
    for model in models:
        stated, faster, slower = (case for case in cases if case.model is model)
        rows.append(
            Row(
                f"{model.name}: communication among 128 clients over one alone",
                f"{model.slower} ({model.contended_s:g} for {model.alone_s:g} s)",
                f"{_told(outcomes, slower)}; {_told(outcomes, faster)}",
                f"literal: {stated.why}; {slower.why}; {faster.why}",
                literal=_told(outcomes, stated),
                seeds="no jitter",
            )
        )
    implied = _RESNET20.alone_bps * _CNN.alone_s / 64
    notes = (
        "BSP, communication alone: no client computes, so all push at once and pull at once.",
        f"ResNet20 has {_RESNET20.elements:,} parameters, so alone it moved at "
        f"{_rate(_RESNET20.alone_bps)}. At that rate 0.03 s are {implied:,.0f} parameters; "
        f"{_CNN.elements:,} are taken for CNN and LSTM, whose sizes the paper does not give.",
        "So theirs is neither bandwidth nor contention for it (inferred): ResNet20's 1.98 s are "
        f"{_rate(_RESNET20.server_bps)} at the server, a ninth of its port. What clients waited "
        "for was most likely the server's program (RPyC, the paper says).",
    )
    return Result(tuple(rows), notes)


def _told(outcomes: Iterable[Outcome], case: _Case) -> str:
    alone_s, contended_s = (_communication_s(outcomes, case, n) for n in (1, _CLIENTS))
    return (
        f"{case.name} {contended_s / alone_s:.1f}x ({contended_s:.2f} for {alone_s:.2f} s), "
        f"{_rate(case.client_bps)} to {_rate(case.server_bps)}"
    )


def _labels(case: _Case, clients: int) -> dict[str, Label]:
    return {"model": case.model.name, "case": case.name, "clients": clients}


def _trial(case: _Case, clients: int) -> Trial:
    overlay = setting.cluster(case.server_bps, clients, 1, case.client_bps)
    scenario = setting.served(case.elements, Bsp(), 5, overlay, None, 0)
    return Trial(_labels(case, clients), scenario, overlay)


def _communication_s(outcomes: Iterable[Outcome], case: _Case, clients: int) -> float:
    """Return the time of a client's push and pull together, seconds."""
    labels = _labels(case, clients)
    (found,) = [each for each in outcomes if each.labels == labels]
    assert found.push_s is not None
    assert found.pull_s is not None
    return found.push_s + found.pull_s


def _rate(bps: float) -> str:
    return f"{bps / 1e9:.3g} Gbit/s" if bps >= 1e9 else f"{bps / 1e6:.3g} Mbit/s"


EXPERIMENTS = (Experiment("r2sp/table2", "communication among 128 clients, over one alone", _make),)
