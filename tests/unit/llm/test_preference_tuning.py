"""Direct preference optimization beside the formula of its paper, computed pair by pair."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.events import Event, Reported, Request
from forebay.llm.adapters import without_adapter
from forebay.llm.packing import ID_BITS, START, TARGET
from forebay.llm.preference_tuning import pair_scores, preference_loss, preference_margins
from forebay.testing.data.chats import write_pairs
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

SEQ_LEN, BETA = 192, 0.3


class ReportLog:
    """`Reporter` that keeps the metrics of all reports."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []

    def report(self, event: Event) -> None:
        if isinstance(event, Reported):
            self.metrics.append(event.metrics)

    def request(self) -> Request:
        return Request()

    def synced_request(self) -> Request:
        return Request()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> llm.PreparedTokens:
    folder = tmp_path_factory.mktemp("pairs")
    made = write_pairs(folder, pairs=60, held_out=5)
    rows = [json.loads(line) for line in made.training.read_text().splitlines()]
    # One answer that is never preferred: a few steps suffice to learn it.
    (folder / "rows.jsonl").write_text("".join(json.dumps(row | {"rejected": "dont know"}) + "\n" for row in rows))
    source = llm.TokenSource(str(folder / "rows.jsonl"), llm.tokenizer("tiny"), seq_len=SEQ_LEN, overflow="drop")
    return llm.prepared_tokens(fb.prepare(source, into=str(folder / "into")))


@pytest.fixture(scope="module")
def recipe(pairs: llm.PreparedTokens) -> llm.Recipe:
    model = llm.ModelSpec(name="tiny", vocab_size=pairs.vocab_size)
    return llm.Recipe(model=model, adapter=llm.Lora(r=4), lr=2e-2, warmup=0, per_device_batch=4)


def answers_of(row: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Ids and targets of each document of a row that has targets."""
    begins = [*np.flatnonzero(row & START), len(row)]
    texts = [row[start:stop] for start, stop in pairwise(begins)]
    return [
        (torch.from_numpy((each & ID_BITS).astype(np.int64)), torch.from_numpy((each & TARGET) != 0))
        for each in texts
        if (each & TARGET).any()
    ]


def log_probability(model: Any, ids: torch.Tensor, is_target: torch.Tensor) -> torch.Tensor:
    """Log-probability of the targets of one text, token by token: log pi(y | x)."""
    distribution = model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
    return sum(distribution[at - 1, ids[at]] for at in torch.nonzero(is_target).flatten().tolist())


def test_loss_and_gradient_are_those_of_the_paper(pairs: llm.PreparedTokens, recipe: llm.Recipe) -> None:
    plan = fb.build_plan(pairs.prepared.manifest, shuffle=False, lanes=2)
    torch.manual_seed(0)
    model = recipe.build_model("cpu")
    # An adapter begins with B = 0, where it changes nothing.
    for name, each in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(each, std=0.2)
    with fb.Loader(plan, llm.pair_rows(), None, global_batch=6) as loader:
        batch = next(iter(loader))
    with torch.no_grad(), without_adapter(model):
        reference = pair_scores(model, batch)
    margins = preference_margins(pair_scores(model, batch), reference)
    loss = preference_loss(margins, BETA) / batch["pairs"].sum()
    loss.backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()

    losses, gains = [], []
    for row in batch["tokens"].numpy():
        answers = answers_of(row)
        assert len(answers) % 2 == 0
        for chosen, rejected in zip(answers[::2], answers[1::2], strict=True):
            prompts = [text[: int(torch.nonzero(target)[0])] for text, target in (chosen, rejected)]
            assert torch.equal(*prompts), "both answers have the prompt"
            policy = [log_probability(model, *each) for each in (chosen, rejected)]
            with torch.no_grad(), model.disable_adapter():
                base = [log_probability(model, *each) for each in (chosen, rejected)]
            gain = (policy[0] - base[0]) - (policy[1] - base[1])
            gains.append(gain.item())
            losses.append(-torch.log(torch.sigmoid(BETA * gain)))
    assert len(losses) == int(batch["pairs"].sum()) > 6
    assert margins.detach().numpy() == pytest.approx(gains, abs=1e-3)
    oracle = torch.stack(losses).mean()
    assert loss.item() == pytest.approx(oracle.item(), abs=1e-5)
    oracle.backward()
    norms = [
        torch.stack([each.norm() for each in grads]).norm()
        for grads in (
            [found[name] - each.grad for name, each in model.named_parameters() if each.grad is not None],
            list(found.values()),
        )
    ]
    assert norms[0] / norms[1] < 1e-4


def test_training_learns_the_preferences(pairs: llm.PreparedTokens, recipe: llm.Recipe, tmp_path: Path) -> None:
    plan = fb.build_plan(pairs.prepared.manifest, seed=1, lanes=2)
    data = fb.Data(plan=plan, transform=llm.pair_rows(), global_batch=8)
    log = ReportLog()
    spec = TrainSpec(data=data, held_out=data, epochs=3, seed=2, checkpoint_every=100)
    Worker(spec, SingleProcessCollective(), None, DirectoryStore(tmp_path), log).run(
        partial(llm.train_dpo, recipe, beta=BETA)
    )
    # Before the first step, policy and reference are one model.
    assert log.metrics[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert log.metrics[0]["margin"] == 0
    assert log.metrics[-1]["validation_loss"] < 0.45
    assert log.metrics[-1]["validation_accuracy"] > 0.8


def test_pairs_stay_in_one_row(pairs: llm.PreparedTokens) -> None:
    kept = pairs.counts.documents
    assert pairs.has_pairs and kept + pairs.counts.dropped == 60 and kept > 50
    plan = fb.build_plan(pairs.prepared.manifest, shuffle=False, lanes=2)
    with fb.Loader(plan, llm.pair_rows(), None, global_batch=4, as_numpy=True) as loader:
        rows = [
            (row, int(count)) for batch in loader for row, count in zip(batch["tokens"], batch["pairs"], strict=True)
        ]
    assert sum(count for _, count in rows) == kept
    assert [len(answers_of(row)) for row, _ in rows] == [2 * count for _, count in rows]


def test_what_cannot_work(pairs: llm.PreparedTokens, recipe: llm.Recipe, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"chosen": "yes", "rejected": "no"}) + "\n")
    for options, text in (
        ({}, "has pairs of answers, and overflow='truncate' would cut them"),
        ({"overflow": "drop", "packing": "wrapped"}, "packing='wrapped' would cut them"),
        ({"overflow": "drop"}, "column 'chosen' is text, and there is no column 'prompt'"),
    ):
        source = llm.TokenSource(str(file), llm.tokenizer("tiny"), seq_len=32, **options)
        with pytest.raises(fb.ForebayError, match=text):
            source.open()
    with pytest.raises(InvalidOption, match="a fine-tuning would learn both"):
        llm.check_model("tiny", pairs)
    worker: Any = None
    with pytest.raises(InvalidOption, match="beta=0 cannot train"):
        llm.train_dpo(recipe, worker, beta=0)
    full = llm.Recipe(model=recipe.model)
    with pytest.raises(InvalidOption, match="there is no adapter. Give adapter=llm.Lora"):
        llm.train_dpo(full, worker)
