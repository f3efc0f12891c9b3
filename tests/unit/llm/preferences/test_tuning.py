"""Direct preference optimization beside the formula of its paper, computed pair by pair."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
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
from forebay.llm.packing import DESIRED, ID_BITS, START, TARGET
from forebay.llm.preferences.answers import log_probabilities
from forebay.llm.preferences.losses import Preferences, gains, pair_losses
from forebay.llm.preferences.reference_rows import ReferenceReader, ReferenceSource
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

BETA = 0.3
DPO = Preferences(beta=BETA)


class ReportLog:
    """`Reporter` that keeps the metrics of all reports."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []

    def report(self, *events: Event) -> None:
        self.metrics += [event.metrics for event in events if isinstance(event, Reported)]

    def request(self) -> Request:
        return Request()

    def synced_request(self) -> Request:
        return Request()

    def knows(self, report: object) -> bool:
        return True


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
        reference = log_probabilities(model, batch).values
    margins = gains(DPO, log_probabilities(model, batch), reference)
    loss = pair_losses(DPO, margins).mean()
    loss.backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()

    losses, gained = [], []
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
            gained.append(gain.item())
            losses.append(-torch.log(torch.sigmoid(BETA * gain)))
    assert len(losses) == int(batch["pairs"].sum()) > 6
    assert margins.detach().numpy() == pytest.approx(gained, abs=1e-3)
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
        partial(llm.prefer, recipe, preferences=DPO)
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
    with pytest.raises(InvalidOption, match="A fine-tuning would learn both"):
        llm.check_model("tiny", pairs)
    with pytest.raises(InvalidOption, match="needs the columns prompt, completion and label"):
        llm.check_model("tiny", pairs, answers="labels")
    with pytest.raises(InvalidOption, match="train_on='all' would compare the prompts"):
        llm.TokenSource(str(file), llm.tokenizer("tiny"), overflow="drop", train_on="all").open()
    worker: Any = None
    with pytest.raises(InvalidOption, match="reference='adapter' is the model without its adapter"):
        llm.prefer(llm.Recipe(model=recipe.model), worker, preferences=llm.Preferences(reference="adapter"))
    with pytest.raises(InvalidOption, match="loss='reward' trains a model with the head 'reward'"):
        llm.prefer(recipe, worker, preferences=llm.Preferences(loss="reward"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "orpo"}, "loss='orpo' is unknown"),
        ({"beta": 0}, "beta=0 cannot train"),
        ({"beta": float("nan")}, "beta=nan cannot train"),
        ({"gamma": 1.0}, "gamma=1.0 is not a number of loss='dpo', but of 'simpo'"),
        ({"loss": "reward", "beta": 0.1}, "beta=0.1 is not a number of loss='reward'"),
        ({"loss": "simpo", "reference": "copy"}, "loss='simpo' compares with no reference"),
        ({"loss": "kto", "undesirable_weight": -1}, "undesirable_weight=-1 cannot train"),
    ],
)
def test_options_that_never_work(options: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        llm.Preferences(**options)


def test_reader_stays_of_pairs_in_another_process(pairs: llm.PreparedTokens, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "a", "chosen": "yes", "rejected": "no"}) + "\n")
    reader = llm.TokenSource(str(file), llm.tokenizer("tiny"), seq_len=64, overflow="drop").open()
    assert pickle.loads(pickle.dumps(reader)).has_pairs


def test_answers_with_labels_stand_beside_answers_to_other_prompts(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{number}", "completion": f"c{number}", "label": number != 1} for number in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = llm.TokenSource(str(file), llm.tokenizer("tiny"), seq_len=64, overflow="drop", packing="none")
    prepared = llm.prepared_tokens(fb.prepare(source, into=str(tmp_path / "into")))
    assert prepared.has_labels and not prepared.has_pairs
    tokenizer = prepared.tokenizer(llm.tokenizer("tiny"))
    found = []
    with fb.Loader(
        fb.build_plan(prepared.prepared.manifest, shuffle=False, lanes=1),
        llm.pair_rows(),
        None,
        global_batch=3,
        as_numpy=True,
    ) as loader:
        for row in next(iter(loader))["tokens"]:
            texts = [tokenizer.decode(ids[is_target]) for ids, is_target in answers_of(row)]
            found.append((texts, bool(row[0] & DESIRED)))
    end = tokenizer.eos_token
    assert found == [([f"c{each}{end}", f"c{(each + 1) % 3}{end}"], each != 1) for each in range(3)]
    for row, text in (
        (rows[0] | {"label": 1}, "column 'label' is 1, not true or false"),
        (rows[0], "has a single answer with a label"),
    ):
        file.write_text(json.dumps(row) + "\n")
        with pytest.raises(fb.ForebayError, match=text):
            fb.prepare(source, into=str(tmp_path / "other"))


def test_stored_reference_is_computed_once(
    pairs: llm.PreparedTokens, recipe: llm.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pairs.prepared.manifest.num_rows
    found = llm.with_reference(pairs, recipe, into=str(tmp_path))
    assert found.reference and found.prepared.manifest.num_rows == rows and found.counts == pairs.counts
    monkeypatch.setattr(ReferenceReader, "read", lambda *_: pytest.fail("it was computed again"))
    assert llm.with_reference(pairs, recipe, into=str(tmp_path)).prepared.fingerprint == found.prepared.fingerprint
    for other in ({"seed": 1}, {"recipe": replace(recipe, dtype="bf16")}):
        options = {"recipe": recipe, "seed": 0} | other
        with pytest.raises(BaseException, match="computed again"):
            llm.with_reference(pairs, into=str(tmp_path), **options)
    half = [replace(recipe, dtype="bf16", weights=each) for each in ("float32", "bf16")]
    one, other = (ReferenceSource(pairs, each, seed=0, device=torch.device("cpu")).origin() for each in half)
    assert one.arguments["dtype"] == other.arguments["dtype"] and one != other
