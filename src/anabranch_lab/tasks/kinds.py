"""Named classification tasks as tensors.

- `digits` comes with scikit-learn and needs no file.
- `mnist` and `fashion-mnist` are read from their official files, found in a directory or fetched,
  and refused if a single byte differs.
- `cifar-10` is read from its official archive, or from files of the same form.
- `cifar-10-part` is for directories that lack some files. It trains on the archive's first three
  training files and holds out the fifth. Its accuracies are not those of the official split.
- `spoken-digits` is the Free Spoken Digit Dataset as spectrograms, for key-word spotting.
- `synthetic-tones` has the form of `spoken-digits` and needs no file: pairs of gliding tones in
  noise, drawn by a rule.
- `pairs` and `translation` are tokens, drawn by rules: to classify pairs of sentences, and to
  output a sentence's translation word by word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from anabranch_lab.tasks import _cifar, _speech, _tokens, _tones
from anabranch_lab.tasks._fetch import cache_of, fetch
from anabranch_lab.tasks._idx import DataError, parse_idx_gz
from anabranch_lab.tasks._names import unknown

__all__ = ["TASKS", "DataError", "Task", "load_task"]

_DIGITS_SEED = 0
_DIGITS_HELD_OUT = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Images, spectrograms or tokens to classify, split into training and held-out samples.

    Args:
        name: as given to `load_task`.
        train_inputs, held_out_inputs: images of shape (N, C, H, W), float32, normalised by
            constants of the task so that training pixels have mean 0 and standard deviation 1;
            spectrograms (N, 1, frames, bands) likewise; or token ids, int64, of shape (N, L) or
            (N, 2, L).
        train_labels, held_out_labels: shape (N,), int64, in [0, classes); or (N, L), one for each
            output token.
        classes: how many there are.
        vocabulary: how many different tokens there are, ids in [0, vocabulary); None: no tokens.

    Raises:
        ValueError: shapes, types, counts or labels contradict this.
    """

    name: str
    train_inputs: torch.Tensor
    train_labels: torch.Tensor
    held_out_inputs: torch.Tensor
    held_out_labels: torch.Tensor
    classes: int
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if self.train_inputs.shape[1:] != self.held_out_inputs.shape[1:]:
            raise ValueError(
                f"task {self.name!r} trains on inputs of shape {tuple(self.train_inputs.shape[1:])}"
                f" and holds out {tuple(self.held_out_inputs.shape[1:])}; they must be the same"
            )
        for part, inputs, labels in (
            ("training", self.train_inputs, self.train_labels),
            ("held-out", self.held_out_inputs, self.held_out_labels),
        ):
            is_image = self.vocabulary is None
            asked = "(N, C, H, W), torch.float32" if is_image else "(N, L) or (N, 2, L), int64"
            right = (4,) if is_image else (2, 3)
            dtype = torch.float32 if is_image else torch.int64
            if inputs.dim() not in right or inputs.dtype != dtype:
                raise ValueError(
                    f"task {self.name!r} has {part} inputs of shape {tuple(inputs.shape)}, "
                    f"{inputs.dtype}; give {asked}"
                )
            shapes = (inputs.shape[:1],) if is_image else (inputs.shape[:1], inputs[:, 0].shape)
            if labels.shape not in shapes or labels.dtype != torch.int64 or not len(labels):
                raise ValueError(
                    f"task {self.name!r} has {part} labels of shape {tuple(labels.shape)}, "
                    f"{labels.dtype}; give one torch.int64 for each of {len(inputs)} inputs, at "
                    "least one"
                )
            self._check_ids(f"{part} labels", labels, self.classes)
            if self.vocabulary is not None:
                self._check_ids(f"{part} tokens", inputs, self.vocabulary)

    def _check_ids(self, what: str, ids: torch.Tensor, count: int) -> None:
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= count:
            raise ValueError(f"task {self.name!r} has {what} {low}..{high}, outside 0..{count - 1}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: channels, height and width of an image; 1, frames, bands."""
        return tuple(self.train_inputs.shape[1:])


@dataclass(frozen=True, slots=True)
class _IdxFiles:
    """The origin of a task's four IDX files, their official hashes, and the pixels' moments."""

    url: str
    sha256: Mapping[str, str]
    mean: float  # of the training pixels, as shares of 255
    deviation: float


_IDX_TASKS = {
    "mnist": _IdxFiles(
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        sha256={
            "train-images-idx3-ubyte.gz": (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
            ),
            "train-labels-idx1-ubyte.gz": (
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
            ),
        },
        mean=0.1307,
        deviation=0.3081,
    ),
    "fashion-mnist": _IdxFiles(
        url=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
            "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/"
        ),
        sha256={
            "train-images-idx3-ubyte.gz": (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
            ),
            "train-labels-idx1-ubyte.gz": (
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
            ),
        },
        mean=0.2860,
        deviation=0.3530,
    ),
}

# Of the 50,000 official training images, as shares of 255: red, green, blue.
_CIFAR_MEANS = (0.4914, 0.4822, 0.4465)
_CIFAR_DEVIATIONS = (0.2470, 0.2435, 0.2616)

_TOKEN_TASKS = {
    "pairs": (_tokens.pairs, 2),
    "translation": (_tokens.translation, _tokens.VOCABULARY),
}

# Of the 2,700 training spectrograms: logarithms of energy.
_SPEECH_MEAN, _SPEECH_DEVIATION = -5.4386, 2.5969

TASKS = ("digits", *_IDX_TASKS, *_cifar.CIFAR_TASKS, _speech.TASK, _tones.TASK, *_TOKEN_TASKS)
"""The names `load_task` knows."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The properties of a task that its model needs; see :class:`Task`."""

    shape: tuple[int, ...]
    classes: int
    vocabulary: int | None = None


def looks_of(name: str) -> Looks:
    """Return the properties of a task that its model needs, without its data.

    Raises:
        ValueError: no task of this name.
    """
    if name not in TASKS:
        raise ValueError(unknown("task", name, TASKS))
    if name in _TOKEN_TASKS:
        drawn = _drawn(name)
        return Looks(drawn.shape, drawn.classes, drawn.vocabulary)
    if name in _cifar.CIFAR_TASKS:
        return Looks((3, 32, 32), _cifar.CLASSES)
    if name == _speech.TASK:
        return Looks((1, _speech.FRAMES, _speech.BANDS), _speech.CLASSES)
    if name == _tones.TASK:
        return Looks((1, _tones.FRAMES, _tones.BANDS), _tones.CLASSES)
    return Looks((1, 8, 8) if name == "digits" else (1, 28, 28), 10)


def load_task(name: str, data_dir: Path | None = None, *, download: bool = True) -> Task:
    """Return a task, the same tensors at every site.

    Args:
        name: one of `TASKS`.
        data_dir: where to look first for the official files, as ``data_dir/<name>/<file>`` or
            ``data_dir/<file>``; then in this user's cache directory. `digits`, `synthetic-tones`
            and the tokens need neither. CIFAR-10's files may also be in ``data_dir/cifar10`` or, as
            in their archive, in ``data_dir/cifar-10-batches-bin``, plain or as ``.xz``. Recordings
            of spoken digits are in ``data_dir/fsdd`` or ``data_dir/free-spoken-digit-dataset``, as
            ``recordings/*.wav`` or ``recordings.tar``, which may be packed by gzip or xz.
        download: whether to fetch a file that is in none of these into the cache.

    Raises:
        ValueError: no task of this name.
        DataError: a file is missing, its hash is not the official one, or a CIFAR-10 file has
            another form; or the recordings are not exactly those of the data set.
    """
    if name not in TASKS:
        raise ValueError(unknown("task", name, TASKS))
    if name == "digits":
        return _digits()
    if name in _TOKEN_TASKS:
        return _drawn(name)
    if name in _cifar.CIFAR_TASKS:
        return _cifar_10(name, data_dir, download)
    if name == _speech.TASK:
        return _spoken_digits(data_dir, download)
    if name == _tones.TASK:
        return _synthetic_tones()
    source = _IDX_TASKS[name]

    def read(file: str, dimensions: int) -> npt.NDArray[np.uint8]:
        path = _locate(name, file, source, data_dir, download)
        data = path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != source.sha256[file]:
            raise DataError(
                f"{path} has SHA-256 {found}; the official file of {name} has "
                f"{source.sha256[file]}: delete it, or give --data-dir where intact files are"
            )
        return parse_idx_gz(data, dimensions, str(path))

    def part(prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = read(f"{prefix}-images-idx3-ubyte.gz", 3)
        labels = read(f"{prefix}-labels-idx1-ubyte.gz", 1)
        inputs = _inputs(pixels[:, np.newaxis], 255.0, (source.mean,), (source.deviation,))
        return inputs, _labels(labels)

    return Task(name, *part("train"), *part("t10k"), classes=10)


def _locate(name: str, file: str, source: _IdxFiles, data_dir: Path | None, download: bool) -> Path:
    cache = cache_of(name)
    places = [cache] if data_dir is None else [data_dir / name, data_dir, cache]
    for place in places:
        if (place / file).is_file():
            return place / file
    missing = f"{file}: it is not in {', '.join(map(str, places))}"
    known_hash = f"sha256:{source.sha256[file]}"
    return fetch(name, source.url + file, known_hash, places, download, missing)


def _cifar_10(name: str, data_dir: Path | None, download: bool) -> Task:
    def tensors(
        pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _inputs(pixels, 255.0, _CIFAR_MEANS, _CIFAR_DEVIATIONS), _labels(labels)

    train, held_out = _cifar.read_cifar(name, data_dir, download)
    return Task(name, *tensors(*train), *tensors(*held_out), classes=_cifar.CLASSES)


def _spoken_digits(data_dir: Path | None, download: bool) -> Task:
    def tensors(
        spectrograms: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        one_channel = spectrograms[:, np.newaxis]
        return _inputs(one_channel, 1.0, (_SPEECH_MEAN,), (_SPEECH_DEVIATION,)), _labels(labels)

    train, held_out = _speech.read_spoken_digits(data_dir, download)
    return Task(_speech.TASK, *tensors(*train), *tensors(*held_out), classes=_speech.CLASSES)


def _synthetic_tones() -> Task:
    train, train_labels, held_out, held_out_labels = map(torch.from_numpy, _tones.synthetic_tones())
    return Task(
        _tones.TASK,
        train[:, None],
        train_labels,
        held_out[:, None],
        held_out_labels,
        classes=_tones.CLASSES,
    )


def _drawn(name: str) -> Task:
    draw, classes = _TOKEN_TASKS[name]
    train, train_labels, held_out, held_out_labels = map(torch.from_numpy, draw())
    return Task(name, train, train_labels, held_out, held_out_labels, classes, _tokens.VOCABULARY)


def _digits() -> Task:
    images, named = _digits_table()
    order = np.random.default_rng(_DIGITS_SEED).permutation(len(named))
    inputs = _inputs(images.reshape(-1, 1, 8, 8), 16.0, (0.3053,), (0.3761,))[order]
    labels = _labels(named)[order]
    held_out = round(len(order) * _DIGITS_HELD_OUT)
    return Task(
        "digits",
        inputs[held_out:].clone(),
        labels[held_out:].clone(),
        inputs[:held_out].clone(),
        labels[:held_out].clone(),
        classes=10,
    )


def _digits_table() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.generic]]:
    """Return the digits of scikit-learn: pixels (1797, 64) in 0..16, and labels (1797,).

    scikit-learn's reader costs a second of imports in each process, so its file is read here.
    """
    sklearn = find_spec("sklearn")
    if sklearn is not None and sklearn.origin is not None:
        file = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    # Another release keeps the file elsewhere. Without scikit-learn, this import fails by name.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images, labels


def _inputs(
    pixels: npt.NDArray[np.generic],
    white: float,
    means: Sequence[float],
    deviations: Sequence[float],
) -> torch.Tensor:
    """Return images (N, C, H, W), pixels in [0, white], normalised channel by channel."""
    scaled = pixels.astype(np.float32)
    scaled /= white
    scaled -= np.array(means, np.float32)[:, np.newaxis, np.newaxis]
    scaled /= np.array(deviations, np.float32)[:, np.newaxis, np.newaxis]
    return torch.from_numpy(scaled)


def _labels(labels: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(labels.astype(np.int64))
