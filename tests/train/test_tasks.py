import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pooch
import pytest
import torch
from sklearn.datasets import load_digits

from anabranch_lab.tasks import kinds as tasks
from anabranch_lab.tasks.kinds import DataError, Task, _digits_table, load_task

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def write_idx_gz(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache directory in place of the user's."""
    place = tmp_path / "cache"
    monkeypatch.setattr(pooch, "os_cache", lambda project: place)
    return place


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A network that is down; returns what was asked of it."""
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append(url)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return asked


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Six training and two held-out images of 2 x 3 pixels that pass for the official mnist."""
    directory = tmp_path / "data" / "mnist"
    pixels = np.arange(48).reshape(8, 2, 3)
    labels = np.arange(8)
    for file, array in zip(FILES, (pixels[:6], labels[:6], pixels[6:], labels[6:]), strict=True):
        write_idx_gz(directory / file, array)
    hashes = {file: hashlib.sha256((directory / file).read_bytes()).hexdigest() for file in FILES}
    monkeypatch.setitem(
        tasks._IDX_TASKS, "mnist", replace(tasks._IDX_TASKS["mnist"], sha256=hashes)
    )
    return directory


def test_the_digits_are_those_scikit_learn_reads():
    for found, read in zip(_digits_table(), load_digits(return_X_y=True), strict=True):
        assert np.array_equal(found, read)


def test_digits_splits_all_1797_samples_alike_every_time(digits):
    again = load_task("digits")
    assert digits.shape == (1, 8, 8)
    assert (len(digits.train_labels), len(digits.held_out_labels)) == (1438, 359)
    assert torch.equal(digits.train_inputs, again.train_inputs)
    assert torch.equal(digits.held_out_labels, again.held_out_labels)
    assert digits.train_inputs.mean().abs() < 0.01
    assert (digits.train_inputs.std() - 1).abs() < 0.01


def test_digits_holds_no_sample_out_that_it_trains_on(digits):
    trained = {image.numpy().tobytes() for image in digits.train_inputs}
    held_out = {image.numpy().tobytes() for image in digits.held_out_inputs}
    assert len(trained) + len(held_out) == 1797
    assert not trained & held_out


@pytest.mark.parametrize("inside", [True, False], ids=["data_dir/mnist/", "data_dir/"])
def test_files_are_found_under_the_task_name_or_directly(small, inside, offline):
    task = load_task("mnist", small.parent if inside else small)
    assert task.shape == (1, 2, 3)
    assert task.train_labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert task.held_out_labels.tolist() == [6, 7]
    pixels = torch.arange(36, 48).reshape(2, 1, 2, 3)
    torch.testing.assert_close(task.held_out_inputs, (pixels / 255 - 0.1307) / 0.3081)
    assert not offline


def test_files_in_the_cache_need_no_data_dir_and_no_network(small, cache, offline):
    small.rename(cache.with_name("moved"))
    cache.mkdir()
    cache.with_name("moved").rename(cache / "mnist")
    assert len(load_task("mnist").train_labels) == 6
    assert not offline


def test_a_missing_file_is_fetched_into_the_cache(small, cache, monkeypatch):
    fetched = []

    def retrieve(url, known_hash, fname, path):
        fetched.append((url, known_hash, path))
        return str(small / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    load_task("mnist")
    assert len(fetched) == 4
    url, known_hash, path = fetched[0]
    assert url == "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz"
    assert known_hash == f"sha256:{tasks._IDX_TASKS['mnist'].sha256[FILES[0]]}"
    assert path == cache / "mnist"


def test_a_file_that_is_nowhere_is_named_with_the_places_and_the_fix(tmp_path, cache):
    with pytest.raises(DataError) as caught:
        load_task("fashion-mnist", tmp_path)
    message = str(caught.value)
    for part in (FILES[0], str(tmp_path / "fashion-mnist"), str(cache), "no route", "--data-dir"):
        assert part in message


def test_nothing_is_fetched_where_that_is_not_allowed(offline):
    with pytest.raises(DataError, match="may not be fetched"):
        load_task("mnist", download=False)
    assert not offline


def test_a_fetched_file_with_another_hash_is_refused(monkeypatch):
    def retrieve(url, known_hash, fname, path):
        raise ValueError("SHA256 hash of downloaded file does not match")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataError, match="hash of downloaded file does not match"):
        load_task("mnist")


def test_a_file_that_differs_from_the_official_one_is_refused_not_replaced(small, offline):
    write_idx_gz(small / FILES[3], np.array([6, 8]))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz has SHA-256 .* --data-dir"):
        load_task("mnist", small)
    assert not offline


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'fashion-mnist'"):
        load_task("fashion_mnist")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_official_files_give_the_published_task(name, data_dir):
    task = load_task(name, data_dir)
    assert task.shape == (1, 28, 28)
    assert (len(task.train_labels), len(task.held_out_labels)) == (60_000, 10_000)
    assert torch.bincount(task.held_out_labels).shape == (10,)
    assert task.train_inputs.mean().abs() < 0.001
    assert (task.train_inputs.std() - 1).abs() < 0.001


INPUTS, LABELS = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 2])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"train_labels": LABELS[:3]}, r"labels of shape \(3,\)"),
        ({"held_out_labels": LABELS.float()}, "torch.float32; give one torch.int64"),
        ({"train_inputs": INPUTS.double()}, "torch.float64"),
        ({"held_out_inputs": torch.zeros(4, 1, 2, 3)}, "must be the same"),
        ({"classes": 2}, r"training labels 0\.\.2, outside 0\.\.1"),
        ({"held_out_inputs": INPUTS[:0], "held_out_labels": LABELS[:0]}, "at least one"),
    ],
)
def test_a_task_that_contradicts_itself_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(Task("t", INPUTS, LABELS, INPUTS, LABELS, 3), **change)
