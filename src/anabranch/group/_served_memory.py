"""The memory of a served model: parameters, then buffers, as one flat array.

A push sends gradients of the parameters, and the buffers' values. Integers are exact in float32 up
to 2^24.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.terms import Wire
from anabranch.group.tensors import Tensors, find_not_finite
from anabranch.net.messages import Proceed
from anabranch.train.buffers import Array, is_counted

_MOST_COUNTED = 1 << 24


class ServedMemory:
    """One member's memory of a served model.

    Args:
        parameters: float32; the servers' optimiser steps them.
        buffers: float32, of which servers keep a mean, and integers, of which they keep the
            largest.

    Attributes:
        model: shape (elements,): parameters, float buffers, integers; pulls overwrite it.
        gradients: the pushed array, of the same shape.
        averaged_elements, largest_elements: how many elements of the model are float buffers, and
            how many integers follow them, at its end.
        permission: that of the update being computed; None between updates.
        is_over: whether no update follows.
        pulled_s: when the latest model came, by the loop's time.
        asks_loss: whether a push needs the loss of its batch.

    Raises:
        ValueError: a tensor is of another type, or a buffer has integers beyond 2^24.
    """

    def __init__(self, parameters: list[Any], buffers: list[Any]) -> None:
        floats = [each for each in buffers if not is_counted(_array(each))]
        self._parameters = Tensors(parameters)
        self._averaged = Tensors(floats) if floats else None
        self._counted = [each for each in buffers if is_counted(_array(each))]
        for tensors in (self._parameters, self._averaged):
            if tensors is not None and tensors.wire != Wire.FLOAT32:
                raise ValueError("parameters and buffers that are served must be float32")
        self.averaged_elements = 0 if self._averaged is None else self._averaged.elements
        self.largest_elements = sum(_array(each).size for each in self._counted)
        self._first_buffer = self._parameters.elements
        buffers_elements = self.averaged_elements + self.largest_elements
        self.model: Floats = np.empty(self._first_buffer + buffers_elements, np.float32)
        self.model[: self._first_buffer] = self._parameters.read(0, self._first_buffer)
        self._read_buffers(self.model)
        self.gradients: Floats = np.zeros_like(self.model)
        self.permission: Proceed | None = None
        self.is_over = False
        self.pulled_s = 0.0
        self.asks_loss = False

    def fill(self, gradients: list[Any], refuses_nan: bool) -> None:
        """Fill ``gradients`` with the gradients, and with the buffers' values.

        Args:
            gradients: in the order of the parameters.
            refuses_nan: whether NaN and infinities in the gradients are an error, since they would
                reach the model.

        Raises:
            ValueError: the gradients have another size than the parameters, or are not finite, or a
                buffer has integers beyond 2^24.
        """
        given = Tensors(gradients)
        if refuses_nan and (found := find_not_finite(given.parts, given.wire)):
            raise ValueError(
                f"gradient {found[0]} has {found[1]} NaN or infinite elements, which would reach "
                "the shared model; push another, or set group.on_nan = 'allow'"
            )
        if given.elements != self._first_buffer:
            raise ValueError(
                f"the gradients have {given.elements} elements, the parameters "
                f"{self._first_buffer}; give no buffers, since push sends them too"
            )
        self.gradients[: self._first_buffer] = given.read(0, given.elements)
        self._read_buffers(self.gradients)

    def write(self) -> None:
        """Copy the model into parameters and buffers."""
        self._parameters.write(0, self.model[: self._first_buffer])
        self._parameters.finish()
        if self._averaged is not None:
            counted = len(self.model) - self.largest_elements
            self._averaged.write(0, self.model[self._first_buffer : counted])
            self._averaged.finish()
        start = len(self.model) - self.largest_elements
        for each in self._counted:
            array = _array(each)
            values = np.rint(self.model[start : start + array.size]).astype(array.dtype)
            start += array.size
            if isinstance(each, np.ndarray):
                each[...] = values.reshape(array.shape)
            else:
                import torch

                from anabranch.group.writing import overwrite

                overwrite(each, torch.from_numpy(values).view(each.shape))

    def _read_buffers(self, into: Floats) -> None:
        start = self._first_buffer
        if self._averaged is not None:
            self._averaged.refresh()
            into[start : start + self.averaged_elements] = self._averaged.read(
                0, self.averaged_elements
            )
            start += self.averaged_elements
        for each in self._counted:
            array = _array(each)
            if array.size and int(abs(array).max()) > _MOST_COUNTED:
                raise ValueError(
                    f"a buffer of {array.dtype} holds {int(abs(array).max())}; integers up to "
                    f"{_MOST_COUNTED} are served: leave it out of buffers"
                )
            into[start : start + array.size] = array.reshape(-1)
            start += array.size


def _array(given: Any) -> Array:
    """Return a tensor's elements: its own memory if that is the CPU's, else a copy."""
    return given if isinstance(given, np.ndarray) else given.detach().cpu().numpy()
