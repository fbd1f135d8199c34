import hashlib
import io
import lzma
import tarfile

import numpy as np
import pooch
import pytest
import torch

from anabranch_lab.tasks import _cifar
from anabranch_lab.tasks._cifar import parse_cifar
from anabranch_lab.tasks.kinds import DataError, load_task

TRAIN = [f"data_batch_{k}.bin" for k in range(1, 6)]
ALL = [*TRAIN, "test_batch.bin"]
FIRST_LABEL = {name: label for label, name in enumerate(ALL)}


def records(first_label, count=2):
    """Records whose labels count up, and whose pixels say which plane and row they are in."""
    pixels = np.arange(3 * 32, dtype=np.uint8).reshape(3, 32, 1).repeat(32, axis=2)
    return b"".join(bytes([first_label + k]) + pixels.tobytes() for k in range(count))


def write(folder, names, pack=lambda data: data, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}{suffix}").write_bytes(pack(records(FIRST_LABEL[name])))


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """Files of two records pass for the official ones; the cache is empty, the network down."""
    monkeypatch.setattr(_cifar, "_FILE_RECORDS", 2)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")

    def retrieve(url, known_hash, fname, path):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", retrieve)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A small archive that passes for the official one."""
    path = tmp_path / "origin" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as tar:
        for name in [*ALL, "readme.html"]:
            data = records(FIRST_LABEL[name]) if name in ALL else b"<html>"
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    monkeypatch.setattr(_cifar, "_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    return path


def test_a_record_is_a_label_and_three_planes_row_by_row():
    pixels, labels = parse_cifar(records(8), "x.bin")
    assert labels.tolist() == [8, 9]
    assert pixels.shape == (2, 3, 32, 32)
    assert (pixels[1, 2, 5] == 2 * 32 + 5).all()


@pytest.mark.parametrize("data", [b"", bytes(3072), bytes(3074), bytes(2 * 3073 - 1)])
def test_a_file_that_is_not_whole_records_is_refused(data):
    with pytest.raises(DataError, match=rf"x\.bin has {len(data)} bytes, .* records of 3073"):
        parse_cifar(data, "x.bin")


def test_a_label_beyond_nine_is_refused_with_its_record():
    with pytest.raises(DataError, match=r"x\.bin has label 10 in record 1"):
        parse_cifar(records(9), "x.bin")


@pytest.mark.parametrize("folder", ["cifar10", "cifar-10", "cifar-10-batches-bin", "."])
def test_all_six_files_give_the_official_split(folder, tmp_path):
    write(tmp_path / folder, ALL)
    task = load_task("cifar-10", tmp_path)
    assert task.train_labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert task.held_out_labels.tolist() == [5, 6]
    assert task.shape == (3, 32, 32)
    green = torch.full((32,), (32 + 7) / 255)
    torch.testing.assert_close(task.train_inputs[0, 1, 7], (green - 0.4822) / 0.2435)


def test_files_may_be_compressed(tmp_path):
    write(tmp_path, ALL[:2])
    write(tmp_path, ALL[2:], lzma.compress, ".xz")
    assert len(load_task("cifar-10", tmp_path).train_labels) == 10


def test_part_of_the_files_is_a_task_of_its_own(tmp_path):
    write(tmp_path, ALL)
    task = load_task("cifar-10-part", tmp_path)
    assert task.name == "cifar-10-part"
    assert task.train_labels.tolist() == [0, 1, 1, 2, 2, 3]
    assert task.held_out_labels.tolist() == [4, 5]


def test_a_folder_that_lacks_files_never_makes_do(tmp_path):
    write(tmp_path / "cifar10", [*TRAIN[:3], TRAIN[4]])
    with pytest.raises(DataError) as caught:
        load_task("cifar-10", tmp_path)
    message = str(caught.value)
    for part in ("cifar10 lacks data_batch_4.bin, test_batch.bin", "no route", "--data-dir"):
        assert part in message
    assert len(load_task("cifar-10-part", tmp_path).train_labels) == 6


def test_the_archive_serves_where_files_are_missing(archive, tmp_path):
    write(tmp_path / "cifar10", TRAIN)
    with pytest.raises(DataError, match="may not be fetched"):
        load_task("cifar-10", tmp_path, download=False)
    archive.rename(tmp_path / archive.name)
    assert load_task("cifar-10", tmp_path).held_out_labels.tolist() == [5, 6]


def test_a_missing_archive_is_fetched_into_the_cache(archive, tmp_path, monkeypatch):
    fetched = []

    def retrieve(url, known_hash, fname, path):
        fetched.append((url, known_hash, path))
        return str(archive)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert load_task("cifar-10-part").held_out_labels.tolist() == [4, 5]
    [(url, known_hash, path)] = fetched
    assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    assert known_hash == f"md5:{_cifar._MD5}"
    assert path == tmp_path / "cache" / "cifar-10"


def test_an_archive_that_differs_from_the_official_one_is_refused(archive, monkeypatch):
    monkeypatch.setattr(_cifar, "_MD5", "0" * 32)
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz has MD5 .* --data-dir"):
        load_task("cifar-10", archive.parent)


def test_a_file_with_too_few_records_is_refused(tmp_path):
    write(tmp_path, ALL)
    (tmp_path / "data_batch_2.bin").write_bytes(records(0, count=1))
    with pytest.raises(DataError, match=r"data_batch_2\.bin has 1 records; the official files"):
        load_task("cifar-10", tmp_path)


def test_a_damaged_xz_file_is_refused(tmp_path):
    write(tmp_path, ALL, lzma.compress, ".xz")
    (tmp_path / "data_batch_2.bin.xz").write_bytes(lzma.compress(records(0))[:-9])
    with pytest.raises(DataError, match=r"data_batch_2\.bin\.xz is no intact xz file"):
        load_task("cifar-10", tmp_path)


@pytest.mark.slow
def test_the_official_files_give_the_published_part(data_dir, monkeypatch):
    monkeypatch.undo()
    task = load_task("cifar-10-part", data_dir, download=False)
    assert task.shape == (3, 32, 32)
    assert torch.bincount(task.train_labels).sum() == 30_000
    assert task.held_out_labels[:5].tolist() == [1, 8, 5, 1, 5]
    channels = task.train_inputs.transpose(0, 1).flatten(1)
    # Normalised by constants of all 50,000 images, so those of 30,000 are near 0 and 1 only.
    torch.testing.assert_close(channels.mean(dim=1), torch.zeros(3), atol=0.002, rtol=0)
    torch.testing.assert_close(channels.std(dim=1), torch.ones(3), atol=0.003, rtol=0)
