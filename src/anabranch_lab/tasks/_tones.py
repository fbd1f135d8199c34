"""Pairs of gliding tones in noise, as spectrograms drawn by a rule, alike at every site.

They replace spoken digits, in the same form and number, and need no file. As a vowel has formants,
a class has two tones. Each glides from one band to another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anabranch_lab.tasks._speech import BANDS, CLASSES, FRAMES

__all__ = ["BANDS", "CLASSES", "FRAMES", "TASK", "synthetic_tones"]

TASK = "synthetic-tones"

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_SEED = 0
_TRAIN, _HELD_OUT = 2700, 300
_SHORTEST, _LONGEST = 15, 40  # frames
_SHIFT = 3.0  # bands, up or down: one speaker's voice is higher than another's
_WIDTH = 1.5  # bands
_LOUDNESS = (1.0, 3.0)  # of a tone's middle; noise has standard deviation 1
_MEAN, _DEVIATION = 0.1982, 1.1286  # of the drawn values, before normalisation


def synthetic_tones() -> tuple[Floats, Labels, Floats, Labels]:
    """Return spectrograms and labels to train on, then those that are held out.

    A sample is its class's two tones, and noise everywhere. The tones' common shift, their length,
    their first frame and their loudness are drawn.

    Returns:
        Spectrograms of shape (2700, 49, 40), with mean 0 and standard deviation 1, and labels of
        shape (2700,), in [0, 10), as many of each; then 300 held-out samples likewise.
    """
    generator = np.random.default_rng(_SEED)
    # Where each class's tones begin and end: (classes, tones, ends).
    glides = generator.uniform(_SHIFT, BANDS - 1 - _SHIFT, size=(CLASSES, 2, 2))
    parts: list[npt.NDArray[np.generic]] = []
    for count in (_TRAIN, _HELD_OUT):
        labels = generator.permutation(np.arange(count) % CLASSES)
        parts += [_drawn(glides[labels], generator), labels]
    train, train_labels, held_out, held_out_labels = parts
    return (
        *(train.astype(np.float32), train_labels.astype(np.int64)),
        *(held_out.astype(np.float32), held_out_labels.astype(np.int64)),
    )


def _drawn(
    glides: npt.NDArray[np.float64], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return a spectrogram for each pair of glides, shape (count, frames, bands)."""
    count = len(glides)
    column = (count, 1)
    lasts = generator.uniform(_SHORTEST, _LONGEST, size=column)
    begins = generator.uniform(0.0, FRAMES - lasts)
    shift = generator.uniform(-_SHIFT, _SHIFT, size=(count, 1, 1))
    loudness = generator.uniform(*_LOUDNESS, size=(count, 1, 1))
    progress = (np.arange(FRAMES) - begins) / lasts  # (count, frames)
    first, last = glides[:, :, :1], glides[:, :, 1:]
    at = first + shift + (last - first) * progress[:, np.newaxis]  # (count, tones, frames)
    away = (np.arange(BANDS) - at[..., np.newaxis]) / _WIDTH
    sounds = (progress >= 0.0) & (progress < 1.0)
    tones = np.exp(-0.5 * away**2).max(axis=1) * sounds[..., np.newaxis]
    noise = generator.standard_normal(tones.shape)
    frames: npt.NDArray[np.float64] = (loudness * tones + noise - _MEAN) / _DEVIATION
    return frames
