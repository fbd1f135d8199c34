from dataclasses import replace

import pytest
import torch

from anabranch_lab.tasks.kinds import load_task

FIRST_WORD = 3


@pytest.fixture(scope="module", params=["pairs", "translation"])
def task(request):
    return load_task(request.param, download=False)


def test_a_task_of_tokens_is_the_same_every_time(task):
    again = load_task(task.name)
    assert torch.equal(task.train_inputs, again.train_inputs)
    assert torch.equal(task.held_out_labels, again.held_out_labels)
    assert (len(task.train_labels), len(task.held_out_labels)) == (8192, 1024)
    assert task.vocabulary == 35


def test_no_sample_is_held_out_that_is_trained_on(task):
    trained = {sample.numpy().tobytes() for sample in task.train_inputs}
    assert not trained & {sample.numpy().tobytes() for sample in task.held_out_inputs}


def test_a_pair_is_marked_balanced_and_ruled_by_one_half_of_the_words():
    task = load_task("pairs")
    assert task.shape == (18,)
    assert {(int(row[0]), int(row[9]), int(row[17])) for row in task.train_inputs} == {(1, 2, 2)}
    assert task.train_labels.float().mean() == pytest.approx(0.5, abs=0.02)
    first, second = (torch.zeros(len(task.train_labels), 32) for _ in range(2))
    for counts, words in ((first, slice(1, 9)), (second, slice(10, 17))):
        found = task.train_inputs[:, words] - FIRST_WORD
        counts.scatter_add_(1, found, torch.ones(found.shape))
    # The kind of a word is how it correlates with the answer; with these kinds every label follows.
    kind = (task.train_labels.float() * 2 - 1) @ (first - second) > 0
    assert kind.sum() == 16
    assert torch.equal((first[:, kind].sum(1) > second[:, kind].sum(1)).long(), task.train_labels)


def test_a_translation_is_a_dictionary_s_in_order_and_a_decoder_reads_it_one_word_late():
    task = load_task("translation")
    assert task.shape == (2, 6)
    heard, said = task.train_inputs.unbind(dim=1)
    labels = task.train_labels
    assert (said[:, 0] == 0).all()
    assert torch.equal(said[:, 1:], labels[:, :-1])
    assert (labels.diff(dim=1) > 0).all()
    # A word's translation is the only one that is there whenever the word is.
    together = torch.zeros(35, 35)
    for word in range(6):
        for other in range(6):
            together.index_put_(
                (heard[:, word], labels[:, other]), torch.ones(len(labels)), accumulate=True
            )
    dictionary = together.argmax(dim=1)
    assert len(set(dictionary[FIRST_WORD:].tolist())) == 32
    assert torch.equal(dictionary[heard].sort(dim=1).values, labels)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"train_inputs": torch.zeros(8192, 18)}, r"float32; give \(N, L\) or"),
        ({"vocabulary": 34}, r"training tokens 1\.\.34, outside 0\.\.33"),
        ({"train_labels": torch.zeros(8192, 4, dtype=torch.int64)}, r"labels of shape \(8192, 4\)"),
        ({"vocabulary": None}, r"give \(N, C, H, W\), torch.float32"),
    ],
)
def test_a_task_of_tokens_that_contradicts_itself_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(load_task("pairs"), **change)
