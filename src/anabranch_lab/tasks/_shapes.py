"""The parameter shapes of published networks, layer by layer. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def vgg_16() -> Shapes:
    """Return the shapes of VGG-16 for 1000 classes of colour images, 224 x 224."""
    inputs, number = 3, 1
    for channels, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            yield from _with_bias(f"conv{number}", channels, inputs, 3, 3)
            inputs, number = channels, number + 1
    for layer, outputs, units in (
        ("fc14", 4096, 512 * 7 * 7),
        ("fc15", 4096, 4096),
        ("fc16", 1000, 4096),
    ):
        yield from _with_bias(layer, outputs, units)


def resnet(layers: int) -> Shapes:
    """Return the shapes of a residual network of 6 n + 2 layers for 10 classes of colour images."""
    yield from _normalised("stem", 16, 3, 3, 3)
    inputs = 16
    for channels in (16, 32, 64):
        for block in range((layers - 2) // 6):
            yield from _normalised(f"stage{channels}.{block}.first", channels, inputs, 3, 3)
            yield from _normalised(f"stage{channels}.{block}.second", channels, channels, 3, 3)
            inputs = channels
    yield from _with_bias("fc", 10, 64)


_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def large_resnet(layers: int) -> Shapes:
    """Return the shapes of a residual network for 1000 classes of colour images, 224 x 224.

    Args:
        layers: 18 or 34, of two convolutions a block; 50, 101 or 152, of three.
    """
    yield from _normalised("stem", 64, 3, 7, 7)
    inputs = 64
    for stage, blocks in enumerate(_BLOCKS[layers]):
        inner = 64 << stage
        outputs = inner if layers < 50 else 4 * inner
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            if layers < 50:
                yield from _normalised(f"{name}.first", inner, inputs, 3, 3)
                yield from _normalised(f"{name}.second", inner, inner, 3, 3)
            else:
                yield from _normalised(f"{name}.first", inner, inputs, 1, 1)
                yield from _normalised(f"{name}.second", inner, inner, 3, 3)
                yield from _normalised(f"{name}.third", outputs, inner, 1, 1)
            if inputs != outputs:
                yield from _normalised(f"{name}.shortcut", outputs, inputs, 1, 1)
            inputs = outputs
    yield from _with_bias("fc", 1000, inputs)


def mobilenet() -> Shapes:
    """Return the shapes of MobileNet for 1000 classes of colour images, 224 x 224."""
    yield from _normalised("stem", 32, 3, 3, 3)
    inputs = 32
    widths = (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    for block, outputs in enumerate(widths):
        yield from _normalised(f"block{block}.depthwise", inputs, 1, 3, 3)
        yield from _normalised(f"block{block}.pointwise", outputs, inputs, 1, 1)
        inputs = outputs
    yield from _with_bias("fc", 1000, inputs)


def cnn() -> Shapes:
    """Return the shapes of a small convolutional network: 10 classes, colour images of 32 x 32."""
    yield from _with_bias("conv1", 32, 3, 5, 5)
    yield from _with_bias("conv2", 64, 32, 5, 5)
    yield from _with_bias("fc3", 512, 64 * 8 * 8)
    yield from _with_bias("fc4", 10, 512)


def lstm(features: int = 40, units: int = 128, layers: int = 2, classes: int = 10) -> Shapes:
    """Return the shapes of LSTM layers that read frames of `features`, and a classifier."""
    inputs = features
    for layer in range(layers):
        yield f"lstm{layer}.input.weight", (4 * units, inputs)
        yield f"lstm{layer}.hidden.weight", (4 * units, units)
        yield f"lstm{layer}.input.bias", (4 * units,)
        yield f"lstm{layer}.hidden.bias", (4 * units,)
        inputs = units
    yield from _with_bias("fc", classes, units)


def inception_v3() -> Shapes:
    """Return the shapes of Inception-v3 for 1000 classes, without the auxiliary classifier."""
    yield from _normalised("conv1", 32, 3, 3, 3)
    yield from _normalised("conv2", 32, 32, 3, 3)
    yield from _normalised("conv3", 64, 32, 3, 3)
    yield from _normalised("conv4", 80, 64, 1, 1)
    yield from _normalised("conv5", 192, 80, 3, 3)
    for block, (inputs, pooled) in enumerate(((192, 32), (256, 64), (288, 64))):
        yield from _block_35(f"grid35.{block}", inputs, pooled)
    yield from _to_grid_17("grid17.0", 288)
    for block, inner in enumerate((128, 160, 160, 192), start=1):
        yield from _block_17(f"grid17.{block}", 768, inner)
    yield from _to_grid_8("grid8.0", 768)
    for block, inputs in enumerate((1280, 2048), start=1):
        yield from _block_8(f"grid8.{block}", inputs)
    yield from _with_bias("fc", 1000, 2048)


def _block_35(name: str, inputs: int, pooled: int) -> Shapes:
    yield from _normalised(f"{name}.one", 64, inputs, 1, 1)
    yield from _normalised(f"{name}.five.0", 48, inputs, 1, 1)
    yield from _normalised(f"{name}.five.1", 64, 48, 5, 5)
    yield from _normalised(f"{name}.threes.0", 64, inputs, 1, 1)
    yield from _normalised(f"{name}.threes.1", 96, 64, 3, 3)
    yield from _normalised(f"{name}.threes.2", 96, 96, 3, 3)
    yield from _normalised(f"{name}.pool", pooled, inputs, 1, 1)


def _to_grid_17(name: str, inputs: int) -> Shapes:
    yield from _normalised(f"{name}.three", 384, inputs, 3, 3)
    yield from _normalised(f"{name}.threes.0", 64, inputs, 1, 1)
    yield from _normalised(f"{name}.threes.1", 96, 64, 3, 3)
    yield from _normalised(f"{name}.threes.2", 96, 96, 3, 3)


def _block_17(name: str, inputs: int, inner: int) -> Shapes:
    yield from _normalised(f"{name}.one", 192, inputs, 1, 1)
    yield from _normalised(f"{name}.seven.0", inner, inputs, 1, 1)
    yield from _normalised(f"{name}.seven.1", inner, inner, 1, 7)
    yield from _normalised(f"{name}.seven.2", 192, inner, 7, 1)
    yield from _normalised(f"{name}.sevens.0", inner, inputs, 1, 1)
    yield from _normalised(f"{name}.sevens.1", inner, inner, 7, 1)
    yield from _normalised(f"{name}.sevens.2", inner, inner, 1, 7)
    yield from _normalised(f"{name}.sevens.3", inner, inner, 7, 1)
    yield from _normalised(f"{name}.sevens.4", 192, inner, 1, 7)
    yield from _normalised(f"{name}.pool", 192, inputs, 1, 1)


def _to_grid_8(name: str, inputs: int) -> Shapes:
    yield from _normalised(f"{name}.three.0", 192, inputs, 1, 1)
    yield from _normalised(f"{name}.three.1", 320, 192, 3, 3)
    yield from _normalised(f"{name}.seven.0", 192, inputs, 1, 1)
    yield from _normalised(f"{name}.seven.1", 192, 192, 1, 7)
    yield from _normalised(f"{name}.seven.2", 192, 192, 7, 1)
    yield from _normalised(f"{name}.seven.3", 192, 192, 3, 3)


def _block_8(name: str, inputs: int) -> Shapes:
    yield from _normalised(f"{name}.one", 320, inputs, 1, 1)
    yield from _normalised(f"{name}.three.0", 384, inputs, 1, 1)
    yield from _normalised(f"{name}.three.wide", 384, 384, 1, 3)
    yield from _normalised(f"{name}.three.high", 384, 384, 3, 1)
    yield from _normalised(f"{name}.threes.0", 448, inputs, 1, 1)
    yield from _normalised(f"{name}.threes.1", 384, 448, 3, 3)
    yield from _normalised(f"{name}.threes.wide", 384, 384, 1, 3)
    yield from _normalised(f"{name}.threes.high", 384, 384, 3, 1)
    yield from _normalised(f"{name}.pool", 192, inputs, 1, 1)


def bert(layers: int = 12, width: int = 768, classes: int = 2) -> Shapes:
    """Return the shapes of BERT's base size with a classifier of token sequences."""
    yield "words", (30_522, width)
    yield "positions", (512, width)
    yield "segments", (2, width)
    yield from _scale_and_shift("embedding.norm", width)
    for layer in range(layers):
        for part in ("query", "key", "value", "output"):
            yield from _with_bias(f"layer{layer}.{part}", width, width)
        yield from _scale_and_shift(f"layer{layer}.attention.norm", width)
        yield from _with_bias(f"layer{layer}.up", 4 * width, width)
        yield from _with_bias(f"layer{layer}.down", width, 4 * width)
        yield from _scale_and_shift(f"layer{layer}.norm", width)
    yield from _with_bias("pooler", width, width)
    yield from _with_bias("classifier", classes, width)


def t5_small() -> Shapes:
    """Return the shapes of T5-small, whose embedding is also its last layer."""
    width, heads, inner, layers = 512, 8, 2048, 6
    yield "words", (32_128, width)
    for side, attentions in (("encoder", ("self",)), ("decoder", ("self", "cross"))):
        for layer in range(layers):
            name = f"{side}{layer}"
            for attention in attentions:
                for part in ("query", "key", "value", "output"):
                    yield f"{name}.{attention}.{part}", (width, width)
                if attention == "self" and layer == 0:  # all layers of a side share it
                    yield f"{side}.positions", (32, heads)
                yield f"{name}.{attention}.norm", (width,)
            yield f"{name}.up", (inner, width)
            yield f"{name}.down", (width, inner)
            yield f"{name}.norm", (width,)
        yield f"{side}.norm", (width,)


def _with_bias(name: str, outputs: int, *inputs: int) -> Shapes:
    yield f"{name}.weight", (outputs, *inputs)
    yield f"{name}.bias", (outputs,)


def _normalised(name: str, outputs: int, *inputs: int) -> Shapes:
    yield f"{name}.weight", (outputs, *inputs)
    yield from _scale_and_shift(f"{name}.norm", outputs)


def _scale_and_shift(name: str, channels: int) -> Shapes:
    yield f"{name}.weight", (channels,)
    yield f"{name}.bias", (channels,)
