from __future__ import annotations

import torch

from forebay.llm.evaluation import right_answers

NONE = -100


def exact_answers(logits: torch.Tensor, labels: torch.Tensor) -> tuple[int, int]:
    return right_answers(logits.argmax(dim=-1) != labels, labels)


def test_an_answer_counts_when_all_of_its_tokens_are_right() -> None:
    labels = torch.tensor([[NONE, 1, 2, NONE, 3, NONE, 0], [4, 4, NONE, NONE, 1, 1, NONE]])
    logits = torch.nn.functional.one_hot(labels.clamp(min=0), 5).float()
    assert exact_answers(logits, labels) == (5, 5)
    logits[0, 2] = torch.tensor([0.0, 0, 1, 2, 0])
    logits[0, 0] = torch.tensor([0.0, 0, 0, 2, 0])  # no target, so it counts for nothing
    logits[1, 5] = torch.tensor([1.0, 0, 0, 0, 0])
    assert exact_answers(logits, labels) == (3, 5)


def test_rows_are_apart() -> None:
    labels = torch.tensor([[NONE, 1], [1, NONE]])
    logits = torch.zeros(2, 2, 3)
    logits[0, 1, 1] = 1
    assert exact_answers(logits, labels) == (1, 2)


def test_nothing_to_answer() -> None:
    labels = torch.full((2, 3), NONE)
    assert exact_answers(torch.zeros(2, 3, 4), labels) == (0, 0)


def test_greedy_decoding_gives_what_is_counted(tokenizer) -> None:
    """An untrained model is decoded token by token: its own answer is exact, and another one is not."""
    from forebay.llm.models import ModelSpec

    torch.manual_seed(0)
    model = ModelSpec(name="tiny", vocab_size=len(tokenizer)).build().eval()
    prompt = tokenizer("Copy (fox,sun)", return_tensors="pt")["input_ids"]
    decoded = model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    labels = decoded.clone()
    labels[:, : prompt.shape[1]] = NONE
    with torch.no_grad():
        logits = model(input_ids=decoded).logits[:, :-1]
    assert exact_answers(logits, labels[:, 1:]) == (1, 1)
    labels[0, -2] = (labels[0, -2] + 1) % len(tokenizer)
    assert exact_answers(logits, labels[:, 1:]) == (0, 1)
