"""Token sequences by rules that a small transformer can learn, drawn alike at every site.

They replace a benchmark's texts and need no file. Sizes and lengths are small, so that such a model
learns the rule within hundreds of steps on one core.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Split = tuple[Tokens, Tokens, Tokens, Tokens]  # trained on: inputs, labels; held out: likewise

_SEED = 0
_TRAIN, _HELD_OUT = 8192, 1024
_START, _CLASSIFY, _SEPARATE, _FIRST_WORD = 0, 1, 2, 3
_WORDS = 32
VOCABULARY = _FIRST_WORD + _WORDS

_PAIR_LENGTHS = (8, 7)  # one word more: a tie is answered 0, and both answers are equally likely
_SENTENCE_LENGTH = 6


def pairs() -> Split:
    """Return pairs of sentences, and whether the first has more words of one kind.

    Half of the words are of that kind; only the labels show which.

    Returns:
        Inputs of shape (N, 18): a mark, eight words, a mark, seven words, a mark. Labels of shape
        (N,), 0 or 1.
    """
    generator = np.random.default_rng(_SEED)
    first, second = _PAIR_LENGTHS
    count = _TRAIN + _HELD_OUT
    is_of_kind = generator.permutation(_WORDS) < _WORDS // 2
    words = generator.integers(_WORDS, size=(count, first + second))
    found = is_of_kind[words]
    labels = found[:, :first].sum(axis=1) > found[:, first:].sum(axis=1)
    tokens = words + _FIRST_WORD
    marks = np.full((2, count, 1), [[[_CLASSIFY]], [[_SEPARATE]]])
    inputs = np.concatenate(
        [marks[0], tokens[:, :first], marks[1], tokens[:, first:], marks[1]], axis=1
    )
    return _split(inputs, labels.astype(np.int64))


def translation() -> Split:
    """Return sentences, and their words translated one by one, in alphabetical order.

    Returns:
        Inputs of shape (N, 2, 6): the sentence's words, all different; and the decoder's inputs, a
        mark and then the translation without its last word. Labels of shape (N, 6): the
        translation.
    """
    generator = np.random.default_rng(_SEED)
    count = _TRAIN + _HELD_OUT
    dictionary = generator.permutation(_WORDS)
    words = generator.permuted(np.tile(np.arange(_WORDS), (count, 1)), axis=1)
    words = words[:, :_SENTENCE_LENGTH]
    labels = np.sort(dictionary[words], axis=1) + _FIRST_WORD
    read = np.concatenate([np.full((count, 1), _START), labels[:, :-1]], axis=1)
    return _split(np.stack([words + _FIRST_WORD, read], axis=1), labels)


def _split(inputs: Tokens, labels: Tokens) -> Split:
    return inputs[:_TRAIN], labels[:_TRAIN], inputs[_TRAIN:], labels[_TRAIN:]
