"""A model's buffers, such as running statistics, beside the averages of its parameters.

Floating-point buffers become the weighted mean of the sites' values, with any outer optimiser:
statistics have no gradient, and a step along their change can make a variance negative. If no site
has changed a buffer since the last average, it keeps its bits. All other buffers, such as counters
and masks, become the first member's, since a mean may be no valid value.

A site may make steps while an average is on its way. It adds the change of these steps to the
result, and clamps the sum between the result and its own value. So a variance stays positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anabranch.train.checksum import checksum
from anabranch.train.sharded import check_whole

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float32]


class Buffers:
    """The buffers of one site's model.

    Args:
        find: returns the tensors or arrays, always as many, of the same shapes and types. It is
            called for each average, since a module may replace a buffer by a new tensor.

    Attributes:
        layout: the buffers' types and shapes, in order.

    Raises:
        ValueError: a buffer is no tensor or array, or is sparse.
    """

    def __init__(self, find: Callable[[], Iterable[Any]]) -> None:
        self._find = find
        self.layout = [(str(each.dtype), tuple(each.shape)) for each in _tensors(find())]
        averaged = self._averaged()
        self._last = [each.to("cpu", copy=True) for each in averaged]
        self._sent = [each.clone() for each in self._last]
        # The exchanged array: all values, and for each buffer whether it has changed.
        self._numbers = np.zeros(sum(map(_length, averaged)) + len(averaged), np.float32)
        self._before: list[Tensor] = []  # the copied buffers when their broadcast began
        self._copies: list[Tensor] = []  # the copied buffers as the broadcast leaves them
        # The copied buffers after the last broadcast.
        self._agreed = [each.to("cpu", copy=True) for each in self._copied()]
        self._words: list[Any] = []

    @property
    def has_copied(self) -> bool:
        """Whether there are other buffers than floating-point ones."""
        return len(self._last) < len(self.layout)

    def contribute(self) -> list[Floats]:
        """Return the array that an exchange replaces by its mean; empty without such buffers.

        Raises:
            ValueError: the model has other buffers than before.
        """
        begin, changed = 0, self._changed
        averaged = self._averaged()
        for place, (each, last) in enumerate(zip(averaged, self._last, strict=True)):
            now = each.cpu()
            self._sent[place].copy_(now)
            self._numbers[begin : begin + _length(now)] = now.float().reshape(-1).numpy()
            begin += _length(now)
            is_same = (now == last) | (now.isnan() & last.isnan())
            changed[place] = not is_same.all()
        return [self._numbers] if averaged else []

    def drop(self) -> None:
        """Leave the contributed array to an exchange that is no longer waited for."""
        self._numbers = self._numbers.copy()

    def take(self) -> None:
        """Apply the mean, now in the contributed array.

        Raises:
            ValueError: the model has other buffers than before.
        """
        import torch

        begin = 0
        parts = zip(self._averaged(), self._last, self._sent, self._changed, strict=True)
        for each, last, sent, has_changed in parts:
            mean = torch.from_numpy(self._numbers[begin : begin + _length(last)])
            begin += _length(last)
            if has_changed:
                last.copy_(mean.view(last.shape))
            each.copy_(_moved_on(last, sent, each.cpu()))

    def words(self) -> list[Tensor]:
        """Return the copied buffers' bits, for a broadcast of the first member's.

        Raises:
            ValueError: the model has other buffers than before.
        """
        import torch

        from anabranch.group.words import Words

        self._before = [each.to("cpu", copy=True) for each in self._copied()]
        self._copies = [each.clone(memory_format=torch.contiguous_format) for each in self._before]
        self._words = [Words(each) for each in self._copies if each.numel()]
        return [each.words for each in self._words]

    def take_words(self) -> None:
        """Apply the first member's bits, now in the words.

        Raises:
            ValueError: the model has other buffers than before.
        """
        self._finish_words()
        self._agreed = self._copies
        for each, copy, sent in zip(self._copied(), self._copies, self._before, strict=True):
            each.copy_(_moved_on(copy, sent, each.cpu()))

    def finish(self) -> None:
        """Undo the changes since the last averages; then all sites have the same buffers."""
        self.adopt()
        for each, agreed in zip(self._copied(), self._agreed, strict=True):
            each.copy_(agreed)

    def _finish_words(self) -> None:
        for words in self._words:
            words.finish()
        self._words = []

    def base_checksum(self) -> int:
        """Return a checksum of the floating-point buffers after the last average."""
        flat = [each.float().reshape(-1).numpy() for each in self._last]
        return checksum(np.concatenate(flat)) if flat else 0

    def adopt(self) -> None:
        """Undo floating-point buffers' changes since the last average, after loading a state."""
        for each, last, sent in zip(self._averaged(), self._last, self._sent, strict=True):
            each.copy_(last)
            sent.copy_(last)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, once averages on their way have their results."""
        import torch

        self._finish_words()
        return {
            "last": [*self._last],
            "sent": [*self._sent],
            "numbers": torch.from_numpy(self._numbers),
            "before": [*self._before],
            "copies": [*self._copies],
            "agreed": [*self._agreed],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: the state is of other buffers.
        """
        here = [*self._last, *self._sent]
        saved = [*state["last"], *state["sent"]]
        if [each.shape for each in here] != [each.shape for each in saved]:
            raise ValueError(
                f"the state of an average has {len(saved) // 2} floating-point buffers, this model "
                f"{len(here) // 2}, or of other shapes; give the same buffers as where it was saved"
            )
        for mine, each in zip(here, saved, strict=True):
            mine.copy_(each)
        self._numbers[:] = state["numbers"]
        self._before = [each.clone() for each in state["before"]]
        self._copies = [each.clone() for each in state["copies"]]
        self._agreed = [each.clone() for each in state["agreed"]]

    @property
    def _changed(self) -> Floats:
        return self._numbers[len(self._numbers) - len(self._last) :]

    def _averaged(self) -> list[Tensor]:
        """Return the floating-point buffers as they are now, complex ones as pairs."""
        import torch

        floats = [each for each in self._now() if _is_averaged(each)]
        return [torch.view_as_real(each) if each.is_complex() else each for each in floats]

    def _copied(self) -> list[Tensor]:
        return [each for each in self._now() if not _is_averaged(each)]

    def _now(self) -> list[Tensor]:
        tensors = _tensors(self._find())
        layout = [(str(each.dtype), tuple(each.shape)) for each in tensors]
        if layout != self.layout:
            odd = [each for each in layout if each not in self.layout] or layout
            raise ValueError(
                f"the model had {len(self.layout)} buffers when averages began, and has "
                f"{len(layout)} now, or of other types or shapes, as {odd[:1]}; keep them alike"
            )
        return tensors


def _tensors(given: Iterable[Any]) -> list[Tensor]:
    import torch

    found = []
    for index, each in enumerate(given):
        check_whole(each, f"buffer {index}")
        tensor = torch.from_numpy(each) if isinstance(each, np.ndarray) else each
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise ValueError(
                f"buffer {index} is a {type(each).__name__}; give dense tensors or arrays"
            )
        found.append(tensor.detach())
    return found


def _moved_on(result: Tensor, sent: Tensor, now: Tensor) -> Tensor:
    """Return an average's result, plus the changes since it began."""
    import torch

    whole = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not _is_averaged(result) and result.dtype not in whole:
        # Flags and the like have no sum: elements that have changed since keep their new values.
        bits = getattr(torch, f"int{8 * result.element_size()}")
        is_same = now.view(bits) == sent.view(bits)
        return torch.where(is_same, result.view(bits), now.view(bits)).view(result.dtype)
    is_same = (now == sent) | ((now != now) & (sent != sent))
    bounds = torch.minimum(now, result), torch.maximum(now, result)
    return torch.where(is_same, result, (now + (result - sent)).clamp(*bounds))


def _is_averaged(tensor: Tensor) -> bool:
    # A byte has too few values for a mean.
    return tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)


def _length(tensor: Tensor) -> int:
    return tensor.numel()
