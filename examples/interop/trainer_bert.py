"""transformers.Trainer: a small BERT learns made-up sentences at three ranks.

    torchrun --nproc-per-node 3 examples/interop/trainer_bert.py

The one changed line makes the process group before `TrainingArguments`, which then uses it. The
model is built from its configuration: nothing is fetched.
"""

import hashlib
import tempfile

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS, LENGTH = 60, 12


def sentences(number: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return sentences; the label says whether most words are of the vocabulary's first half."""
    drawn = torch.Generator().manual_seed(seed)
    words = torch.randint(1, WORDS, (number, LENGTH), generator=drawn)
    labels = ((words < WORDS // 2).sum(1) > LENGTH // 2).long()
    return [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": label}
        for ids, label in zip(words, labels, strict=True)
    ]


def main() -> None:
    """Train, and compare what the ranks hold."""
    dist.init_process_group("anabranch")  # the changed line
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                num_train_epochs=3,
                per_device_train_batch_size=16,
                per_device_eval_batch_size=32,
                gradient_accumulation_steps=2,
                learning_rate=3e-3,
                max_grad_norm=1.0,
                save_strategy="no",
                eval_strategy="epoch",
                logging_strategy="epoch",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=sentences(2400, seed=1),
            eval_dataset=sentences(501, seed=2),
        )
        trainer.train()
    losses = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]

    bits = hashlib.sha256()
    for parameter in trainer.model.parameters():
        bits.update(parameter.detach().numpy().tobytes())
    held = [""] * dist.get_world_size()
    dist.all_gather_object(held, bits.hexdigest())
    if dist.get_rank() == 0:
        print(f"held-out loss {losses[0]:.4f} after one epoch, {losses[-1]:.4f} in the end")
        print(f"{len(held)} ranks, the same bits: {len(set(held)) == 1} ({held[0][:12]})")
    dist.destroy_process_group()
    assert len(set(held)) == 1
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
