"""Runs that train a language model on this process, as a driver leaves them in storage."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay import llm
from forebay.events import EpochEnded, Event, Request
from forebay.testing.data.chats import write_chats
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

SEQ_LEN = 64
TrainRun = Callable[..., float]


class LastEpoch:
    """`Reporter` that keeps the metrics of the last epoch."""

    metrics: dict[str, float]

    def report(self, *events: Event) -> None:
        for event in events:
            if isinstance(event, EpochEnded):
                self.metrics = dict(event.metrics)

    def request(self) -> Request:
        return Request()

    def synced_request(self) -> Request:
        return Request()

    def knows(self, report: object) -> bool:
        return True


@pytest.fixture
def last_epoch() -> LastEpoch:
    return LastEpoch()


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> llm.PreparedTokens:
    folder = tmp_path_factory.mktemp("exported")
    chats = write_chats(folder, chats=60, held_out=10)
    source = llm.TokenSource(str(chats.training), llm.tokenizer("tiny"), seq_len=SEQ_LEN, overflow="split")
    return llm.prepared_tokens(fb.prepare(source, into=str(folder / "into")))


@pytest.fixture
def train_run(tokens: llm.PreparedTokens, tmp_path: Path) -> TrainRun:
    """Train the run `name` in `tmp_path/runs` for some steps. Returns the loss of its held-out rows."""

    def train(name: str = "mine", model: str = "tiny", steps: int = 4, **options: Any) -> float:
        spec = llm.ModelSpec(name=model, vocab_size=tokens.vocab_size, **options.pop("model_options", {}))
        recipe = llm.Recipe(
            model=spec,
            lr=options.pop("lr", 1e-2),
            warmup=0,
            tokenizer=tokens.spec(llm.tokenizer("tiny")),
            per_device_batch=4,
            **options,
        )
        plan = fb.build_plan(tokens.prepared.manifest, seed=7, lanes=2)
        batch = math.ceil(plan.num_rows / steps)
        data = fb.Data(plan=plan, transform=llm.token_rows(), global_batch=batch)
        held_out = fb.Data(
            plan=fb.build_plan(plan.manifest, shuffle=False, lanes=2), transform=llm.token_rows(), global_batch=4
        )
        log = LastEpoch()
        store = DirectoryStore(str(tmp_path / "runs" / name / "checkpoints"), keep_last=2)
        job = TrainSpec(data=data, held_out=held_out, seed=5, checkpoint_every=2)
        Worker(job, SingleProcessCollective(), None, store, log).run(partial(llm.finetune, recipe))
        return log.metrics["validation_loss"]

    return train
