"""Spoken digits as spectrograms: the Free Spoken Digit Dataset, read strictly.

Its recordings are wav files, ``<digit>_<speaker>_<index>.wav``, 50 of each digit by each of six
speakers, mono, 16 bits, 8 kHz. They are taken from the first directory that has them, as a folder
``recordings`` or in a tar file; else the archive is fetched. The archive's bytes differ from server
to server, so the check covers the recordings themselves: every name and every byte.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import tarfile
import wave
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anabranch_lab.tasks._fetch import cache_of, fetch
from anabranch_lab.tasks._idx import DataError

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

TASK = "spoken-digits"
CLASSES = 10
FRAMES, BANDS = 49, 40

_RATE_HZ = 8000
_SAMPLES = _RATE_HZ  # one second; 20 of the 3000 recordings are longer
_WINDOW, _HOP, _FFT = 320, 160, 512  # 40 ms every 20 ms
_LOWEST_HZ = 20.0
_FLOOR = 1e-3
_HELD_OUT = 5  # of each digit by each speaker, the first ones: the data set's own split
_AT_ONCE = 100  # recordings, to bound the memory of their windows

_COMMIT = "26eb9aaf76e81b692f806f9140c2d2777410d7a1"
_NAME = "free-spoken-digit-dataset"
_ARCHIVE = f"{_NAME}-{_COMMIT}.tar.gz"
_URL = f"https://github.com/Jakobovski/{_NAME}/archive/{_COMMIT}/{_ARCHIVE}"
_SHA256 = "8fed8b0b058a7efa7544bbb3e8e98607ecdcbd47a2f0ea31139cab18a6b679c9"  # of `_digest`
_FOLDERS = ("fsdd", _NAME, f"{_NAME}-{_COMMIT}")
_RECORDINGS = "recordings"
_TARS = (*(f"{_RECORDINGS}.tar{packed}" for packed in ("", ".gz", ".xz")), _ARCHIVE)
_RECORDING = re.compile(r"(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<index>\d+)\.wav")


def read_spoken_digits(
    data_dir: Path | None, download: bool
) -> tuple[tuple[Floats, Labels], tuple[Floats, Labels]]:
    """Return the training part and the held-out part, each as spectrograms and labels.

    Recordings 0 to 4 of each digit by each speaker are held out, as the data set's authors do.

    Args:
        data_dir: where to look first.
        download: whether to fetch the archive if the recordings are not found.

    Returns:
        Spectrograms of shape (N, 49, 40), see `log_mel`, and labels of shape (N,), in [0, 10).

    Raises:
        DataError: the recordings are missing, or are not those of the data set.
    """
    where, recordings = _read(data_dir, download)
    found = _digest(recordings)
    if found != _SHA256:
        raise DataError(
            f"{where} has {len(recordings)} recordings whose SHA-256 over names and bytes is "
            f"{found}; those of the data set have {_SHA256}: delete them, or give --data-dir where "
            f"intact ones are, from {_URL}"
        )
    signals, labels, indices = [], [], []
    for name, data in sorted(recordings.items()):
        named = _RECORDING.fullmatch(name)
        assert named is not None, name
        signals.append(_second_of(parse_wav(data, f"{where}: {name}")))
        labels.append(int(named["digit"]))
        indices.append(int(named["index"]))
    spectrograms = log_mel(np.stack(signals))
    named_digits, held_out = np.array(labels, np.int64), np.array(indices) < _HELD_OUT
    return (
        (spectrograms[~held_out], named_digits[~held_out]),
        (spectrograms[held_out], named_digits[held_out]),
    )


def parse_wav(data: bytes, where: str) -> Floats:
    """Return the samples of a wav file, in [-1, 1), shape (samples,).

    Args:
        data: the whole file.
        where: the file's name, for the errors.

    Raises:
        DataError: it is no wav file, or not one channel of 16 bits at 8 kHz.
    """
    try:
        with wave.open(io.BytesIO(data)) as file:
            form = file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise DataError(f"{where} is no wav file ({error}); replace the file") from error
    if form != (1, 16, _RATE_HZ):
        raise DataError(
            f"{where} has {form[0]} channels of {form[1]} bits at {form[2]} Hz, not one of 16 at "
            f"{_RATE_HZ}; replace the file"
        )
    return np.frombuffer(frames, "<i2").astype(np.float32) / np.float32(32768)


def log_mel(signals: Floats) -> Floats:
    """Return logarithms of the energy in bands of the mel scale, frame by frame.

    Frames are 40 ms long, begin every 20 ms, and are weighted by a Hann window; bands are
    triangles, evenly spaced on the mel scale from 20 Hz to 4 kHz.

    Args:
        signals: of one second at 8 kHz, in [-1, 1], shape (N, 8000).

    Returns:
        Shape (N, 49, 40); silence is -6.9. Only the last bits differ between machines.

    >>> tone = np.sin(2 * np.pi * 440 * np.arange(8000) / 8000, dtype=np.float32)
    >>> log_mel(tone[np.newaxis]).argmax(axis=2).ravel()[:3]  # 548 of 32 to 2146 mel
    array([9, 9, 9])
    """
    bands = _mel_bands()
    window = np.hanning(_WINDOW + 1)[:-1]
    spectrograms = np.empty((len(signals), FRAMES, BANDS), np.float32)
    for first in range(0, len(signals), _AT_ONCE):
        some = signals[first : first + _AT_ONCE]
        frames = np.lib.stride_tricks.sliding_window_view(some, _WINDOW, axis=1)[:, ::_HOP]
        power = np.abs(np.fft.rfft(frames * window, _FFT)) ** 2
        spectrograms[first : first + _AT_ONCE] = np.log(power @ bands + _FLOOR)
    return spectrograms


def _mel_bands() -> npt.NDArray[np.float64]:
    """Return the weight of each frequency in each band, shape (frequencies, bands)."""
    ends = np.linspace(_mel(_LOWEST_HZ), _mel(_RATE_HZ / 2), BANDS + 2)
    at = _mel(np.fft.rfftfreq(_FFT, 1 / _RATE_HZ))[:, np.newaxis]
    step = ends[1] - ends[0]
    bands: npt.NDArray[np.float64] = np.maximum(0.0, 1.0 - np.abs(at - ends[1:-1]) / step)
    return bands


def _mel(hz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return 2595.0 * np.log10(1.0 + np.asarray(hz, np.float64) / 700.0)


def _second_of(signal: Floats) -> Floats:
    """Return the first second; pad a shorter signal with silence."""
    kept = signal[:_SAMPLES]
    return np.pad(kept, (0, _SAMPLES - len(kept)))


def _read(data_dir: Path | None, download: bool) -> tuple[Path, Mapping[str, bytes]]:
    """Return the place of the recordings, and the content of each by its name."""
    given = [] if data_dir is None else [*(data_dir / each for each in _FOLDERS), data_dir]
    places = [*given, cache_of(TASK)]
    for place in places:
        if (folder := place / _RECORDINGS).is_dir():
            return folder, {path.name: path.read_bytes() for path in folder.glob("*.wav")}
        for tar in _TARS:
            if (place / tar).is_file():
                return place / tar, _members(place / tar)
    missing = (
        f"the recordings of the Free Spoken Digit Dataset: neither {_RECORDINGS}/, "
        f"{', '.join(_TARS[:-1])} nor {_ARCHIVE} is in {', '.join(map(str, places))}"
    )
    archive = fetch(TASK, _URL, None, places, download, missing)
    return archive, _members(archive)


def _members(archive: Path) -> Mapping[str, bytes]:
    try:
        with tarfile.open(archive) as tar:
            return dict(_recordings_in(tar))
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise DataError(f"{archive} is no intact tar file ({error}); replace the file") from error


def _recordings_in(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        *folders, name = member.name.split("/")
        if folders[-1:] == [_RECORDINGS] and name.endswith(".wav"):
            content = tar.extractfile(member)
            if content is not None:
                yield name, content.read()


def _digest(recordings: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, data in sorted(recordings.items()):
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
