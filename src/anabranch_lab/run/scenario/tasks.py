"""What the sites do: the tables of tasks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from anabranch._typed_toml import MOST, Positive, Seconds, Table
from anabranch.train.schedules import AnySchedule, Constant
from anabranch_lab.tasks.adversaries import AnyAdversaries
from anabranch_lab.tasks.partition import AnyPartition, Even
from anabranch_lab.tasks.profiles import load_profile

MOST_ELEMENTS = 10**13  # 40 TB


class Train(Table, frozen=True, kw_only=True, tag_field="kind", tag="train"):
    """Train a model: every step, all sites average their gradients.

    Args:
        data: ``digits``, ``mnist``, ``fashion-mnist``, ``cifar-10``; ``cifar-10-part``, which needs
            only four of its files; ``spoken-digits``, as spectrograms; ``synthetic-tones``, which
            are like spoken digits and need no file; or tokens: ``pairs``, ``translation``.
        partition: which samples each site holds.
        model: ``softmax``, ``mlp``, ``cnn``, ``cnn-6``, ``lenet-5``, ``alexnet``, ``vgg-16``,
            ``resnet-20``, ``resnet-20-wide``, ``resnet-32`` or ``lstm``; for ``pairs``, ``bert`` or
            ``bert-tiny``; for ``translation``, ``t5-small`` or ``t5-tiny``.
        hidden: widths of the hidden linear layers of an mlp or a cnn; empty: the model's default.
        optimiser: ``sgd`` or ``adam``.
        learning_rate: step size.
        schedule: how the step size changes, see :mod:`anabranch.train.schedules`. It counts the
            steps of each optimiser: a site's local steps, or a server's updates.
        momentum: of sgd.
        batch_size: samples a site takes each step.
        evaluate_every: rounds between two evaluations on the held-out data. Where the model is
            served, a round is as many updates as there are workers, barred ones among them.
        evaluate_every_s: seconds between two evaluations instead, where the model is served. The
            first worker that pulls after each such time evaluates.
        evaluate_samples: how many held-out samples an evaluation uses, the first ones; None: all.
        target_accuracy: the accuracy of time-to-accuracy; None: no target.
        adversaries: sites or clients that use wrong labels, or send wrong updates; None: no such.
    """

    data: Literal[
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar-10",
        "cifar-10-part",
        "spoken-digits",
        "synthetic-tones",
        "pairs",
        "translation",
    ] = "digits"
    partition: AnyPartition = Even()
    model: Literal[
        "softmax",
        "mlp",
        "cnn",
        "cnn-6",
        "lenet-5",
        "alexnet",
        "vgg-16",
        "resnet-20",
        "resnet-32",
        "resnet-20-wide",
        "lstm",
        "bert",
        "bert-tiny",
        "t5-small",
        "t5-tiny",
    ] = "mlp"
    hidden: tuple[Positive, ...] = ()
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Meta(gt=0, le=1e9)]
    schedule: AnySchedule = Constant()
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    batch_size: Positive = 32
    evaluate_every: Positive = 10
    evaluate_every_s: Seconds | None = None
    evaluate_samples: Positive | None = None
    target_accuracy: Annotated[float, Meta(gt=0, le=1)] | None = None
    adversaries: AnyAdversaries | None = None


class Exchange(Table, frozen=True, kw_only=True, tag_field="kind", tag="exchange"):
    """Exchange a buffer and compute no gradients; every mean is checked against the exact one.

    Args:
        profile: the model whose tensors the buffer has: ``alexnet``, ``vgg-16``, ``mobilenet``,
            ``resnet-18``, ``-34``, ``-50``, ``-101`` or ``-152``, ``cnn``, ``resnet-20``,
            ``resnet-32``, ``lstm``, ``inception-v3``, ``bert`` or ``t5-small``; or
        elements: its length.
        batch_size: samples before each exchange; ``[compute]`` says how long they take.
    """

    target_accuracy: ClassVar[None] = None
    evaluate_every_s: ClassVar[None] = None

    profile: str | None = None
    elements: Annotated[int, Meta(ge=1, le=MOST_ELEMENTS)] | None = None
    batch_size: Annotated[int, Meta(ge=0, le=MOST)] = 0

    @property
    def buffer_elements(self) -> int:
        """The buffer's length, of a task that has been checked."""
        if self.profile is not None:
            return load_profile(self.profile).elements
        assert self.elements is not None
        return self.elements

    @property
    def tensors(self) -> tuple[int, ...]:
        """The elements of each tensor of a profile; empty for a buffer of given length."""
        return () if self.profile is None else load_profile(self.profile).tensors


class Own(Table, frozen=True, kw_only=True, tag_field="kind", tag="own"):
    """Run code of your own; `anabranch.train.work` says what it must have.

    Args:
        factory: ``module:function``. The function takes a `anabranch.train.work.Context` and
            returns a `anabranch.train.work.Work`.
        folder: where the module is looked for before the usual places, from the scenario's folder.
        options: handed to the factory.
        batch_size: samples a site takes each step.
        evaluate_every: rounds between two calls of the work's ``evaluate``.
        evaluate_every_s: as of :class:`Train`.
        target_accuracy: the accuracy of time-to-accuracy; None: no target.
    """

    factory: str
    folder: str = "."
    options: dict[str, Any] = field(default_factory=dict)
    batch_size: Positive = 32
    evaluate_every: Positive = 10
    evaluate_every_s: Seconds | None = None
    target_accuracy: Annotated[float, Meta(gt=0, le=1)] | None = None


Task = Train | Exchange | Own
