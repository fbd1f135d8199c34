"""Transformers from their configuration alone; `anabranch_lab.tasks.models` describes each.

Nothing is downloaded. Initial values are drawn here, with the variances of the package
transformers. They are uniform, since normal draws depend on how a machine rounds logarithms.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

TEXT_MODELS = ("bert", "bert-tiny", "t5-small", "t5-tiny")

_BERT_VOCABULARY = 30_522
_T5_VOCABULARY = 32_128
_BERT_VARIANCE = 4e-4  # a deviation of 0.02


class _Classifier(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids (N, L) to logits (N, classes)."""
        mask = torch.ones_like(tokens)  # every token counts; without it transformers guesses
        logits: torch.Tensor = self.network(input_ids=tokens, attention_mask=mask).logits
        return logits


class _Translator(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids (N, 2, L), encoder's and decoder's, to logits (N, L, vocabulary)."""
        heard, said = tokens.unbind(dim=1)
        logits: torch.Tensor = self.network(
            input_ids=heard,
            attention_mask=torch.ones_like(heard),
            decoder_input_ids=said,
            use_cache=False,
        ).logits
        return logits


def build_text_model(
    name: str, shape: tuple[int, ...], classes: int, vocabulary: int, seed: int
) -> nn.Module:
    """Build one of `TEXT_MODELS`.

    Args:
        name: of the model.
        shape: of one input: (L,) for BERT, (2, L) for T5.
        classes: how many there are.
        vocabulary: how many different tokens there are.
        seed: of the initial values.

    Raises:
        ValueError: transformers is not installed, or the task does not suit the model.
    """
    if find_spec("transformers") is None:
        raise ValueError(
            f"model {name!r} needs the package transformers, which is not installed: "
            "pip install 'anabranch[text]'"
        )
    is_bert = name.startswith("bert")
    _check_shape(name, shape, is_bert)
    with torch.random.fork_rng(devices=[]):  # transformers draws values that we replace
        if is_bert:
            return _bert(name, shape[0], classes, vocabulary, seed)
        return _t5(name, classes, vocabulary, seed)


def _check_shape(name: str, shape: tuple[int, ...], is_bert: bool) -> None:
    if is_bert and len(shape) != 1:
        raise ValueError(
            f"model {name!r} reads one sequence of tokens, and the task's inputs have shape "
            f"{shape}; take 'pairs', or a model such as 't5-tiny'"
        )
    if not is_bert and (len(shape) != 2 or shape[0] != 2):
        raise ValueError(
            f"model {name!r} reads two sequences of tokens, heard and said, and the task's inputs "
            f"have shape {shape}; take 'translation', or a model such as 'bert-tiny'"
        )


def _bert(name: str, length: int, classes: int, vocabulary: int, seed: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    if name == "bert":
        _check_vocabulary(name, vocabulary, _BERT_VOCABULARY)
        config = BertConfig(vocab_size=_BERT_VOCABULARY, num_labels=classes)
    else:
        config = BertConfig(
            vocab_size=vocabulary,
            num_labels=classes,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=length,
        )
    network = BertForSequenceClassification(config)
    generator = np.random.default_rng(seed)
    for path, parameter in network.named_parameters():
        if parameter.dim() > 1:
            _draw(parameter, _BERT_VARIANCE, generator)
        else:
            nn.init.constant_(parameter, 1.0 if path.endswith("LayerNorm.weight") else 0.0)
    return _Classifier(network)


def _t5(name: str, classes: int, vocabulary: int, seed: int) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    if name == "t5-small":
        _check_vocabulary(name, max(vocabulary, classes), _T5_VOCABULARY)
        config = T5Config(vocab_size=_T5_VOCABULARY)
    else:
        config = T5Config(
            vocab_size=max(vocabulary, classes),
            d_model=128,
            d_kv=32,
            d_ff=256,
            num_heads=4,
            num_layers=2,
            num_decoder_layers=2,
        )
    network = T5ForConditionalGeneration(config)
    generator = np.random.default_rng(seed)
    for path, parameter in network.named_parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter)  # the scales of its normalisation; there are no biases
        elif path == "shared.weight":
            _draw(parameter, 1.0, generator)
        elif path.endswith("relative_attention_bias.weight"):
            _draw(parameter, 1 / config.d_model, generator)
        elif path.endswith(".q.weight"):  # T5's attention does not divide by the root of the width
            _draw(parameter, 1 / (config.d_model * config.d_kv), generator)
        else:
            _draw(parameter, 1 / parameter.shape[1], generator)
    return _Translator(network)


def _check_vocabulary(name: str, asked: int, most: int) -> None:
    if asked > most:
        raise ValueError(f"model {name!r} has {most} tokens, and the task {asked}")


def _draw(parameter: nn.Parameter, variance: float, generator: np.random.Generator) -> None:
    values = generator.random(parameter.numel(), dtype=np.float32)
    values -= 0.5
    values *= math.sqrt(12.0 * variance)
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view(parameter.shape))
