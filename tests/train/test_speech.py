import io
import tarfile
import wave

import numpy as np
import pooch
import pytest
import torch

from anabranch.train.optimisers import Sgd
from anabranch_lab.tasks import _speech
from anabranch_lab.tasks._speech import log_mel, parse_wav
from anabranch_lab.tasks.kinds import DataError, load_task, looks_of
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.train import Trainer


def wav(samples, rate_hz=8000, channels=1, dtype="<i2"):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(np.dtype(dtype).itemsize)
        out.setframerate(rate_hz)
        out.writeframes(np.asarray(samples, dtype).tobytes())
    return file.getvalue()


# Two digits by one speaker, of which recordings 0 to 4 are held out.
SMALL = {
    f"{digit}_ada_{index}.wav": wav(np.full(400 * (index + 1), 1000 * (digit + 1)))
    for digit in (3, 7)
    for index in (0, 4, 5, 10, 30)
}


def write_folder(folder, recordings):
    (folder / "recordings").mkdir(parents=True)
    for name, data in recordings.items():
        (folder / "recordings" / name).write_bytes(data)


def write_tar(path, recordings, inside="recordings"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, f"w:{path.suffix[1:].replace('tar', '')}") as tar:
        for name, data in {**recordings, "readme.txt": b"not a recording"}.items():
            member = tarfile.TarInfo(f"{inside}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """Ten recordings pass for the official ones; the cache is empty, the network down."""
    monkeypatch.setattr(_speech, "_SHA256", _speech._digest(SMALL))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")

    def retrieve(url, known_hash, fname, path):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", retrieve)


def assert_small(task):
    assert task.name == "spoken-digits"
    assert task.train_labels.tolist() == [3, 3, 3, 7, 7, 7]
    assert task.held_out_labels.tolist() == [3, 3, 7, 7]
    assert task.shape == (1, 49, 40)


@pytest.mark.parametrize("folder", ["fsdd", "free-spoken-digit-dataset", "."])
def test_recordings_are_found_in_a_folder(folder, tmp_path):
    write_folder(tmp_path / folder, SMALL)
    assert_small(load_task("spoken-digits", tmp_path))


@pytest.mark.parametrize("name", ["recordings.tar", "recordings.tar.gz", "recordings.tar.xz"])
def test_recordings_may_be_packed(name, tmp_path):
    write_tar(tmp_path / "fsdd" / name, SMALL)
    assert_small(load_task("spoken-digits", tmp_path))


def test_the_archive_is_fetched_into_the_cache(tmp_path, monkeypatch):
    archive = tmp_path / "origin" / _speech._ARCHIVE
    write_tar(archive, SMALL, inside=archive.name.removesuffix(".tar.gz") + "/recordings")
    fetched = []

    def retrieve(url, known_hash, fname, path):
        fetched.append((url, known_hash, fname, path))
        return str(archive)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert_small(load_task("spoken-digits"))
    assert fetched == [(_speech._URL, None, archive.name, tmp_path / "cache" / "spoken-digits")]
    archive.parent.rename(tmp_path / "given")  # one that was fetched by hand
    assert_small(load_task("spoken-digits", tmp_path / "given", download=False))


def test_recordings_that_are_nowhere_are_an_error_with_the_places_and_the_fix(tmp_path):
    with pytest.raises(DataError) as caught:
        load_task("spoken-digits", tmp_path)
    message = str(caught.value)
    for part in ("recordings.tar.xz", str(tmp_path / "fsdd"), "no route", "--data-dir"):
        assert part in message
    with pytest.raises(DataError, match="may not be fetched"):
        load_task("spoken-digits", download=False)


def test_one_recording_too_few_or_one_that_differs_is_refused(tmp_path):
    first, *others = SMALL
    write_folder(tmp_path / "few", {name: SMALL[name] for name in others})
    write_folder(tmp_path / "other", {**SMALL, first: SMALL[others[0]]})
    with pytest.raises(DataError, match=r"has 9 recordings whose SHA-256 .* --data-dir"):
        load_task("spoken-digits", tmp_path / "few")
    with pytest.raises(DataError, match="has 10 recordings whose SHA-256"):
        load_task("spoken-digits", tmp_path / "other")


def test_a_damaged_tar_file_is_refused(tmp_path):
    path = tmp_path / "recordings.tar.xz"
    write_tar(path, SMALL)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"recordings\.tar\.xz is no intact tar file"):
        load_task("spoken-digits", tmp_path)


def test_samples_are_shares_of_the_largest():
    assert parse_wav(wav([-32768, 0, 16384]), "x.wav").tolist() == [-1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no wav file"),
        (b"RIFF1234WAVE", "no wav file"),
        (wav([0], rate_hz=16000), "1 channels of 16 bits at 16000 Hz"),
        (wav([0, 0], channels=2), "2 channels"),
        (wav([0], dtype="u1"), "of 8 bits"),
    ],
)
def test_another_file_than_a_wav_of_the_data_set_is_refused(data, complaint):
    with pytest.raises(DataError, match=rf"x\.wav .*{complaint}"):
        parse_wav(data, "x.wav")


def test_silence_is_the_floor_and_a_tone_is_in_the_frames_and_bands_where_it_sounds():
    signal = np.zeros((1, 8000), np.float32)
    signal[0, 1600:4800] = np.sin(2 * np.pi * 1000 * np.arange(3200) / 8000)  # from 0.2 to 0.6 s
    [found] = log_mel(signal)
    assert found.shape == (49, 40)
    # Frames of 320 samples every 160: the tone is in those from 1600 - 319 to 4799.
    sounds = (found > np.log(1e-3) + 1e-6).any(axis=1)
    assert np.flatnonzero(sounds).tolist() == list(range(9, 30))
    # 1000 Hz are 1000 mel, of 42 equal steps from 32 to 2146 the 18.8th; the first is no band.
    assert set(found[11:28].argmax(axis=1)) == {18}


def test_longer_recordings_are_cut_and_shorter_ones_filled_with_silence():
    long, short = (_speech._second_of(np.ones(n, np.float32)) for n in (9000, 5000))
    assert (long.shape, long.sum()) == ((8000,), 8000)
    assert short.tolist() == [1.0] * 5000 + [0.0] * 3000


@pytest.mark.parametrize("name", ["synthetic-tones"])
def test_tones_are_alike_every_time_normalised_and_as_many_of_each(name):
    task, again = load_task(name), load_task(name)
    assert torch.equal(task.train_inputs, again.train_inputs)
    assert (task.shape, task.classes) == (looks_of(name).shape, looks_of(name).classes)
    assert task.train_labels.bincount().tolist() == [270] * 10
    assert task.held_out_labels.bincount().tolist() == [30] * 10
    assert task.train_inputs.mean().abs() < 0.001
    assert (task.train_inputs.std() - 1).abs() < 0.001


def trained(task, steps, learning_rate, momentum=0.9):
    """Return the accuracy of an LSTM after so many steps in batches of 32."""
    model = build_model("lstm", task.shape, task.classes, seed=0)
    shard = np.arange(len(task.train_labels))
    trainer = Trainer(task, model, shard, Sgd(learning_rate, momentum), 32, seed=0)
    for _ in range(steps):
        trainer.compute_gradients()
        trainer.update()
    return trainer.accuracy()


@pytest.mark.slow
def test_an_lstm_learns_the_tones():
    assert trained(load_task("synthetic-tones"), steps=60, learning_rate=0.1) > 0.8


def test_the_official_recordings_give_the_published_split(data_dir, monkeypatch):
    monkeypatch.undo()
    task = load_task("spoken-digits", data_dir, download=False)
    looks = looks_of("spoken-digits")
    assert (task.shape, task.classes) == (looks.shape, looks.classes)
    assert task.train_labels.bincount().tolist() == [270] * 10
    assert task.held_out_labels.bincount().tolist() == [30] * 10
    assert task.train_inputs.mean().abs() < 0.001
    assert (task.train_inputs.std() - 1).abs() < 0.001


@pytest.mark.slow
def test_an_lstm_learns_spoken_digits(data_dir, monkeypatch):
    monkeypatch.undo()
    task = load_task("spoken-digits", data_dir, download=False)
    assert trained(task, steps=3 * 85, learning_rate=0.1) > 0.85
