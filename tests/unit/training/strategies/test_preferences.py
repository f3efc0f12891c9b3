"""Each loss on preferences on one and two ranks, beside its formula in plain torch, answer by answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

import forebay as fb
from forebay import llm
from forebay.llm.packing import DESIRED, ID_BITS, START, TARGET
from forebay.testing.data.chats import write_labels, write_pairs
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.state.rng import seed_everything
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

SEED, STEPS, BATCH, RATE = 5, 3, 5, 1e-3
CLOSE = {"rel": 1e-6, "abs": 1e-6}
Answer = tuple[torch.Tensor, torch.Tensor]


def trained(
    collective: Any, data: fb.Data, folder: Path, recorder: Any, strategy: str, recipe: llm.Recipe, options: Any
) -> list[dict[str, float]]:
    """Metrics of each step."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    spec = TrainSpec(data=data, held_out=data, seed=SEED, strategy=strategy, checkpoint_every=1000)
    found: list[dict[str, float]] = []
    evaluated: list[Any] = []
    commit, evaluate_with = Worker.commit, Worker.evaluate_with

    class PreferenceLog(Worker):
        def commit(self, **metrics: Any) -> None:
            found.append({name: float(value) for name, value in metrics.items()})
            commit(self, **metrics)

        def evaluate_with(self, evaluate: Any) -> None:
            evaluate_with(self, lambda: evaluated.append(evaluate()) or evaluated[-1])

    worker = PreferenceLog(spec, collective, None, DirectoryStore(folder), recorder())
    worker.run(partial(llm.prefer, recipe, preferences=options))
    found[-1] |= dict(getattr(evaluated[-1], "metrics", evaluated[-1]))
    return found


def answers_of(row: np.ndarray) -> list[Answer]:
    """Ids and targets of each document of a row that has targets."""
    begins = [*np.flatnonzero(row & START), len(row)]
    texts = [row[start:stop] for start, stop in pairwise(begins)]
    return [
        (torch.from_numpy((each & ID_BITS).astype(np.int64)), torch.from_numpy((each & TARGET) != 0))
        for each in texts
        if (each & TARGET).any()
    ]


def log_probability(model: Any, answer: Answer) -> torch.Tensor:
    """Log-probability of the targets of one text, token by token: log pi(y | x)."""
    ids, is_target = answer
    distribution = model(input_ids=ids[None]).logits[0].double().log_softmax(dim=-1)
    places = torch.nonzero(is_target).flatten().tolist()
    return torch.stack([distribution[at - 1, ids[at]] for at in places]).sum()


def reward(model: Any, answer: Answer) -> torch.Tensor:
    return model(input_ids=answer[0][None]).logits[0, -1, 0].double()


def pair_gain(name: str, model: Any, base: Any, pair: tuple[Answer, Answer]) -> torch.Tensor:
    """Argument of a loss's sigmoid or square."""
    if name == "reward":
        return reward(model, pair[0]) - reward(model, pair[1])
    ratios = [log_probability(model, each) for each in pair]
    if name != "simpo":
        with torch.no_grad():
            before = [log_probability(base, each) for each in pair]
        ratios = [each - one for each, one in zip(ratios, before, strict=True)]
    if name != "dpo":
        ratios = [each / one[1].sum() for each, one in zip(ratios, pair, strict=True)]
    return ratios[0] - ratios[1]


def pair_step(name: str, model: Any, base: Any, rows: np.ndarray) -> tuple[torch.Tensor, Mapping[str, float]]:
    """Loss and metrics of a global batch: the formulas of the papers, with their default numbers here."""
    pairs = [
        pair for row in rows for answers in [answers_of(row)] for pair in zip(answers[::2], answers[1::2], strict=True)
    ]
    gains = torch.stack([pair_gain(name, model, base, pair) for pair in pairs])
    scale = {"dpo": 0.1, "dpo_norm": 5.0, "ipo": 0.1, "simpo": 2.0, "reward": 1.0}[name]
    losses = {
        "ipo": lambda: (gains - 1 / (2 * 0.1)) ** 2,
        "simpo": lambda: -logsigmoid(2.0 * gains - 0.5),
    }.get(name, lambda: -logsigmoid(scale * gains))()
    accuracy = (gains > 0).double().mean().item()
    return losses.mean(), {"accuracy": accuracy, "margin": scale * gains.mean().item()}


def label_step(_: str, model: Any, base: Any, rows: np.ndarray) -> tuple[torch.Tensor, Mapping[str, float]]:
    answers, wanted = [], []
    for row in rows:
        answers += [*zip(*[iter(answers_of(row))] * 2, strict=True)]
        wanted += [bool(row[at] & DESIRED) for at in np.flatnonzero(row & START)[::2]][: len(answers) - len(wanted)]
    with torch.no_grad():
        own, others = ([log_probability(base, pair[place]) for pair in answers] for place in (0, 1))
        kl = torch.stack(
            [log_probability(model, pair[1]) - each for pair, each in zip(answers, others, strict=True)]
        ).mean()
        kl = kl.clamp(min=0)
    ratios = torch.stack([log_probability(model, pair[0]) - each for pair, each in zip(answers, own, strict=True)])
    is_wanted = torch.tensor(wanted)
    losses = torch.where(
        is_wanted, 1.5 * (1 - torch.sigmoid(0.1 * (ratios - kl))), 0.5 * (1 - torch.sigmoid(0.1 * (kl - ratios)))
    )
    margin = 0.1 * (ratios[is_wanted].mean() - ratios[~is_wanted].mean()).item()
    right = ((ratios > kl) == is_wanted).double().mean().item()
    return losses.mean(), {"accuracy": right, "margin": margin, "kl": kl.item()}


def by_hand(name: str, data: fb.Data, recipe: llm.Recipe) -> Iterator[dict[str, float]]:
    """Metrics of each step of a loop in plain torch."""
    models = []
    for _ in range(2):
        seed_everything(SEED)
        models.append(recipe.build_model("cpu"))
    model, base = models
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    step: Callable[..., Any] = label_step if name == "kto" else pair_step
    with fb.Loader(data.plan, data.transform, None, global_batch=BATCH, as_numpy=True) as loader:
        for batch in loader:
            loss, metrics = step(name, model, base, batch["tokens"])
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield {"loss": loss.item(), "grad_norm": norm.item(), **metrics}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, llm.PreparedTokens]:
    folder = tmp_path_factory.mktemp("rows")
    made = {"pairs": write_pairs(folder, pairs=40, held_out=1), "labels": write_labels(folder, pairs=24, held_out=1)}
    source = partial(llm.TokenSource, tokenizer=llm.tokenizer("tiny"), seq_len=160, overflow="drop")
    return {
        name: llm.prepared_tokens(fb.prepare(source(str(files.training)), into=str(folder / "into")))
        for name, files in made.items()
    }


REST = pytest.mark.variation("the same loop with another formula")


@pytest.mark.parametrize(
    ("name", "world", "strategy", "reference"),
    [
        ("dpo", 2, "ddp", "stored"),
        ("kto", 2, "ddp", "copy"),
        *(
            pytest.param(name, world, strategy, reference, marks=REST)
            for name in ("dpo", "dpo_norm", "ipo", "simpo", "kto", "reward")
            for world, strategy in ((1, "ddp"), (2, "ddp"), (2, "fsdp2"))
            for reference in (("auto",) if name in ("simpo", "reward") else ("copy", "stored"))
            if (name, world, strategy, reference) not in {("dpo", 2, "ddp", "stored"), ("kto", 2, "ddp", "copy")}
        ),
    ],
)
def test_losses_are_those_of_their_papers(
    rows: Mapping[str, llm.PreparedTokens],
    ranks: Callable[..., Any],
    tmp_path: Path,
    make_recorder: Any,
    name: str,
    world: int,
    strategy: str,
    reference: Any,
) -> None:
    """5 rows a step, 2 a pass: on two ranks one has a pass more, and repeats a row that counts nowhere."""
    tokens = rows["labels" if name == "kto" else "pairs"]
    weights = {"desirable_weight": 1.5, "undesirable_weight": 0.5} if name == "kto" else {}
    options = llm.Preferences(loss=name, reference=reference, **weights)
    head: Any = "reward" if name == "reward" else "tokens"
    model = llm.ModelSpec(name="tiny", vocab_size=tokens.vocab_size, head=head)
    recipe = llm.Recipe(model=model, lr=RATE, schedule="constant", warmup=0, per_device_batch=2, loss_chunk=16)
    if reference == "stored":
        tokens = llm.with_reference(tokens, recipe, into=str(tmp_path), seed=SEED)
    plan = fb.build_plan(tokens.prepared.manifest, seed=1, lanes=2, shuffle_rows=64)
    data = fb.Data(plan=plan, transform=llm.pair_rows(tokens.reference), global_batch=BATCH)
    args = (data, tmp_path / "run", make_recorder, strategy, recipe, options)
    found = [trained(SingleProcessCollective(), *args)] if world == 1 else ranks(world, trained, *args)
    wanted = [*by_hand(name, data, replace(recipe, loss_chunk=0))]
    assert len(wanted) >= STEPS
    for of_rank in found:
        assert len(of_rank) == len(wanted)
        for step, its_step in zip(of_rank, wanted, strict=True):
            assert {key: step[key] for key in its_step} == pytest.approx(its_step, **CLOSE)
    assert {"validation_loss", "validation_accuracy"} <= found[0][-1].keys()
