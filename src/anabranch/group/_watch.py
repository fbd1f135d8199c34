"""Find the parameters that averaged gradients change, and checksum them now and then.

``all_reduce`` gets gradients, which do not name their parameters. But PyTorch calls a hook before
each step of any optimizer (``register_optimizer_step_pre_hook``). So a watch records the memory of
averaged gradients. If the parameters of an optimizer's next step have these gradients, the mean is
about to change these parameters. At that point, their bits must be the same at every member: if a
program made local steps before the mean, it has undone or averaged them.

Freed memory may later hold another gradient at the same address, one that is no mean. So a watch
refers weakly to each tensor's storage, and not to its address alone.

Members compare the first such step, and then the second, fourth, eighth and so on. A checksum of a
sample of the parameters travels with the request for the next mean, and costs no wait. Each
optimizer has its first step, so a second model's first step is compared, too.

The watch runs inside a user's ``optimizer.step()``. It never raises, waits for another site or
keeps a tensor alive. A checksum of parameters on a GPU waits for the GPU.

Every watch of a process hears of every optimizer's step, in the thread of that step. So a lock
guards what a watch remembers from a thread that steps while another one averages.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from anabranch._lazy import loaded
from anabranch.net.messages import Model

_SAMPLED = 1 << 16  # elements of a model in its checksum
_EVERY = 1 << 10  # steps between comparisons, from this step on
_MOST_GRADIENTS = 1 << 17  # remembered without a step of their optimizer
_MOST_BEFORE_FIRST = 1 << 10  # means before the first comparison that may still await one

_lock = threading.Lock()
# A watch may be freed in any thread, so that no lock can guard its removal: see `net.tcp._open`.
_watching: set[weakref.ref[Watch]] = set()
_is_hooked = False


class Watch:
    """The watch of one group at one site."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The storages of tensors averaged since a step used some of them, by the tensor's address.
        self._averaged: dict[int, Any] = {}
        self._has_stepped = False
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._steps_before = 0  # the initial count of an optimizer without steps here
        self._known: Any = None  # the compared parameters; None until PyTorch is needed
        self._model: Model | None = None
        self._means = 0  # before the first comparison
        self._has_compared = False
        if loaded("torch"):  # else with the first averaged tensor
            _begin(self)

    def averaged(self, given: Iterable[Any]) -> None:
        """Record averaged tensors, which may be gradients; skip arrays, which cannot be."""
        tensors = [each for each in given if not isinstance(each, np.ndarray)]
        with self._lock:
            self._means += 1
            if self._has_stepped or len(self._averaged) > _MOST_GRADIENTS:
                self._averaged.clear()
                self._has_stepped = False
        if not tensors:
            return
        from torch import Tensor, nn, strided
        from torch.multiprocessing.reductions import StorageWeakRef

        _begin(self)
        with self._lock:
            for each in tensors:
                if type(each) in (Tensor, nn.Parameter) and each.layout is strided:
                    address = each.data_ptr()
                    self._averaged.pop(address, None)  # so that the latest call sets the order
                    reference = StorageWeakRef(each.untyped_storage())
                    self._averaged[address] = reference

    def before_step(self, optimizer: Any) -> None:
        """Checksum the parameters that an optimizer is about to change by a mean, if due."""
        with self._lock:
            self._before_step(optimizer)

    def _before_step(self, optimizer: Any) -> None:
        if not self._averaged:
            return
        step = self._steps.get(optimizer, self._steps_before) + 1
        is_due = step % _EVERY == 0 or (step < _EVERY and step & (step - 1) == 0)
        found = self._averaged_of(optimizer, most=None if is_due else 1)
        if not found:
            return
        self._has_stepped = True
        self._steps[optimizer] = step
        if not is_due:
            self._averaged.clear()
            return
        for address in found:  # the others may be another optimizer's, compared together with these
            del self._averaged[address]
        is_first = self._are_new(found.values()) and step == 1
        earlier = b""
        if self._model is not None:
            earlier = self._model.checksum.to_bytes(8)
            is_first |= self._model.is_first
        parameters = list(found.values())
        self._model = Model(step, sample_checksum(parameters, earlier), is_first)

    def _averaged_of(self, optimizer: Any, most: int | None) -> dict[int, Any]:
        """Return an optimizer's parameters with averaged gradients, by the gradients' addresses.

        Args:
            optimizer: any PyTorch optimizer.
            most: how many to look for; None for all, in the order of their averages.
        """
        from torch import Tensor, nn, strided

        found = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if type(gradient) is Tensor and gradient.layout is strided:  # it has an address
                    address = gradient.data_ptr()
                    storage = self._averaged.get(address)
                    if storage is None or storage.cdata != gradient.untyped_storage()._cdata:
                        continue
                    if type(parameter) in (Tensor, nn.Parameter):
                        found[address] = parameter
                        if len(found) == most:
                            return found
        return {address: found[address] for address in self._averaged if address in found}

    def _are_new(self, parameters: Iterable[Any]) -> bool:
        """Return whether some parameters were never compared; remember them."""
        from torch.utils.weak import WeakIdKeyDictionary

        if self._known is None:
            self._known = WeakIdKeyDictionary()
        new = [each for each in parameters if each not in self._known]
        for each in new:
            self._known[each] = None
        return bool(new)

    def take(self) -> Model | None:
        """Return the checksum to compare, once; None where no comparison is due."""
        with self._lock:
            model, self._model = self._model, None
            self._has_compared |= model is not None
        return model

    @property
    def may_begin_unlike(self) -> bool:
        """Whether the next mean may fail because models differ before the first step.

        The scheduler fails it before any site has its result. So no site may request it ahead.
        """
        awaits_step = bool(self._averaged) and self._means < _MOST_BEFORE_FIRST
        return awaits_step and not self._has_compared

    def let_in(self, others_go_on: bool) -> None:
        """Restart the count of steps after an admission, at all members.

        Args:
            others_go_on: whether the group was running. A newcomer repeats the others' steps, and
                may round them differently, so that the next step is not compared as the first.
        """
        with self._lock:
            self._steps.clear()
            self._model = None
            self._means, self._has_compared = 0, False
            self._steps_before = 1 if others_go_on else 0


def sample_checksum(parameters: Sequence[Any], earlier: bytes = b"") -> int:
    """Return 64 bits of a sample of tensors' elements: the same for the same bits.

    Args:
        parameters: dense tensors of any types, on any devices. The sample takes about as many
            elements of each, at equal distances, and all of small tensors.
        earlier: bytes that go into the checksum before the sample.
    """
    import torch

    share = max(1, _SAMPLED // len(parameters))
    by_device: dict[Any, list[Any]] = {}
    for each in parameters:
        flat = each.detach().reshape(-1)
        part = flat[:: max(1, -(-flat.numel() // share))].contiguous()
        by_device.setdefault(part.device, []).append(part.view(torch.uint8))
    digest = hashlib.blake2b(earlier, digest_size=8)
    for parts in by_device.values():  # one copy from each device
        digest.update(torch.cat(parts).cpu().numpy().data)
    return int.from_bytes(digest.digest())


def _begin(watch: Watch) -> None:
    """Tell a watch of optimizers' steps, as long as it is referred to; once is enough."""
    global _is_hooked
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    with _lock:
        _watching.add(weakref.ref(watch, _watching.discard))
        if not _is_hooked:  # once for all: another thread's step may be iterating over the hooks
            register_optimizer_step_pre_hook(_before_step)
            _is_hooked = True


def _before_step(optimizer: Any, *_: Any) -> None:
    import torch

    if torch.compiler.is_compiling():  # a watch ignores compiled steps
        return
    for each in _watching.copy():
        if (watch := each()) is not None:
            watch.before_step(optimizer)
