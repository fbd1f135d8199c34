"""The parameters that a group's means are for, and a checksum of them now and then.

``all_reduce`` gets gradients, which do not name their parameters. But PyTorch calls a hook before
each step of any optimizer (``register_optimizer_step_pre_hook``). So a watch notes in which memory
averaged gradients lie, and the next step of an optimizer whose parameters have these gradients
tells which parameters the mean is about to change. At that point they are to be the same bits at
every member: the local steps, if any, that a program made before the mean are undone or averaged.

Memory that was freed may have another gradient at the same address, one that is no mean. So a watch
refers to each tensor's storage, weakly, and not to its address alone.

The first such step is compared, and then the second, fourth, eighth and so on. A checksum of a
sample of the parameters goes beside the request for the next mean, and costs no wait. Each
optimizer has a first step, so a second model has one, too.

It runs inside a user's ``optimizer.step()``. Nothing here raises, waits for another site or keeps a
tensor alive. A checksum of parameters on a GPU waits for that.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from anabranch.net.messages import Model

_SAMPLED = 1 << 16  # elements of a model that are looked at
_EVERY = 1 << 10  # steps, once there have been so many
_MOST_GRADIENTS = 1 << 17  # of which no step of an optimizer was seen
_MOST_BEFORE_FIRST = 1 << 10  # means of which none was for a step of an optimizer

_lock = threading.Lock()
_watching: weakref.WeakSet[Watch] = weakref.WeakSet()
_is_hooked = False


class Watch:
    """One group's, at one site."""

    def __init__(self) -> None:
        # The storages of tensors averaged since a step used some of them, by where these begin.
        self._averaged: dict[int, Any] = {}
        self._has_stepped = False
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._steps_before = 0  # that an optimizer counts for, which has made none here
        self._known: Any = None  # parameters that were compared, once PyTorch is needed
        self._model: Model | None = None
        self._means = 0  # before the first comparison
        self._has_compared = False
        _begin(self)

    def averaged(self, given: Iterable[Any]) -> None:
        """Take note of tensors that are averaged, which may be gradients; arrays are none."""
        self._means += 1
        from torch import Tensor, nn, strided
        from torch.multiprocessing.reductions import StorageWeakRef

        if self._has_stepped or len(self._averaged) > _MOST_GRADIENTS:
            self._averaged.clear()
            self._has_stepped = False
        for each in given:
            if type(each) in (Tensor, nn.Parameter) and each.layout is strided:
                address = each.data_ptr()
                self._averaged.pop(address, None)  # the order is that of the latest calls
                reference = StorageWeakRef(each.untyped_storage())
                self._averaged[address] = reference

    def before_step(self, optimizer: Any) -> None:
        """Look at the parameters that an optimizer is about to change, if it is by a mean."""
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
        for address in found:  # what is left may be another optimizer's, to be compared with these
            del self._averaged[address]
        is_first = self._are_new(found.values()) and step == 1
        earlier = b""
        if self._model is not None:
            earlier = self._model.checksum.to_bytes(8)
            is_first |= self._model.is_first
        parameters = list(found.values())
        self._model = Model(step, sample_checksum(parameters, earlier), is_first)

    def _averaged_of(self, optimizer: Any, most: int | None) -> dict[int, Any]:
        """Return an optimizer's parameters whose gradients are averaged, by these' addresses.

        Args:
            optimizer: any of PyTorch's.
            most: how many to look for; None for all, in the order in which they were averaged.
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
        """Return whether some of these were never compared; take note of them."""
        from torch.utils.weak import WeakIdKeyDictionary

        if self._known is None:
            self._known = WeakIdKeyDictionary()
        new = [each for each in parameters if each not in self._known]
        for each in new:
            self._known[each] = None
        return bool(new)

    def take(self) -> Model | None:
        """Return what is to be compared, once."""
        model, self._model = self._model, None
        self._has_compared |= model is not None
        return model

    @property
    def may_begin_unlike(self) -> bool:
        """Whether the next mean may be the one that fails, as models differ before the first step.

        The scheduler fails it before any site has its result, so it is not asked for ahead.
        """
        awaits_step = bool(self._averaged) and self._means < _MOST_BEFORE_FIRST
        return awaits_step and not self._has_compared

    def let_in(self, others_go_on: bool) -> None:
        """Take note that sites were let in: all count their steps from here on.

        Args:
            others_go_on: whether they come to a training that goes on. What they make up for may be
                rounded otherwise than where the others made it.
        """
        self._steps.clear()
        self._model = None
        self._means, self._has_compared = 0, False
        self._steps_before = 1 if others_go_on else 0


def sample_checksum(parameters: Sequence[Any], earlier: bytes = b"") -> int:
    """Return 64 bits of a sample of tensors' elements: the same for the same bits.

    Args:
        parameters: dense tensors of any types, on any devices. Of each about as many elements
            count, at equal distances; of small ones all.
        earlier: goes into the checksum before them.
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
    """Have a watch told of optimizers' steps for as long as it is referred to."""
    global _is_hooked
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    with _lock:
        _watching.add(watch)
        if not _is_hooked:  # once: a step in another thread may go through the hooks just now
            register_optimizer_step_pre_hook(_before_step)
            _is_hooked = True


def _before_step(optimizer: Any, *_: Any) -> None:
    import torch

    if torch.compiler.is_compiling():  # a step that is compiled is not looked at
        return
    with _lock:
        watching = [*_watching]
    for watch in watching:
        watch.before_step(optimizer)
