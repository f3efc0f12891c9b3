"""Disturbed fine-tunings of a tiny language model.

They record the losses of their steps.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.data.preparation.prepare import prepare
from forebay.llm.adapters import Lora
from forebay.llm.fine_tuning import finetune
from forebay.llm.models import ModelSpec
from forebay.llm.recipe import Recipe
from forebay.llm.source.prepared_tokens import PreparedTokens, prepared_tokens
from forebay.llm.source.token_source import TokenSource
from forebay.llm.source.tokenizers import tokenizer
from forebay.llm.token_batch import token_rows
from forebay.testing.data.chats import write_chats
from forebay.testing.drivers.bench import BenchOrder, DriverBench
from forebay.testing.drivers.events import Disturbance, StepRecord
from forebay.training.job.job import Job
from forebay.training.state.metric import scalar
from forebay.training.worker.worker import Worker

CHATS, SEQ_LEN, GLOBAL_BATCH, LANES = 48, 64, 8, 4
LORA = Lora(r=4, alpha=8)
SAVED = ("loss", "grad_norm")


class LanguageBench(DriverBench):
    """Maker of fine-tuning jobs below `folder`.

    A job has at least 20 steps in 4 epochs, by the training loop of `llm.finetune`.

    A second bench in the same folder, even in another process, makes the same jobs.
    """

    def __init__(self, folder: Path, order: BenchOrder = "rows") -> None:
        self._folder, self.order = folder, order
        chats = write_chats(folder / "chats", chats=CHATS, held_out=1)
        source = TokenSource(str(chats.training), tokenizer("tiny"), seq_len=SEQ_LEN, overflow="split")
        self._tokens: PreparedTokens = prepared_tokens(prepare(source, into=str(folder / "tokens")))
        plan = build_plan(self._tokens.prepared.manifest, seed=7, lanes=LANES)
        self._data = Data(plan=plan, transform=token_rows(), global_batch=GLOBAL_BATCH, last="drop")
        self.steps_per_epoch = self._data.num_batches

    def job(
        self,
        name: str,
        *,
        at_step: int = -1,
        event: str = "",
        step_s: float = 0.0,
        tuning: str = "full",
        **options: Any,
    ) -> Job:
        """Make a job of 4 epochs.

        It has a checkpoint every 2 steps. `tuning` is "full", "lora" or "qlora".

        The rest is as in `DriverBench.job`.
        """
        log = self._folder / "rows" / name
        log.mkdir(parents=True, exist_ok=True)
        model = ModelSpec(
            name="tiny", vocab_size=self._tokens.vocab_size, quantization="nf4" if tuning == "qlora" else None
        )
        adapter = None if tuning == "full" else LORA
        recipe = Recipe(model=model, adapter=adapter, lr=1e-3, per_device_batch=4, weight_decay=0.01)
        disturbance = Disturbance(at_step=at_step, event=event)
        defaults: dict[str, Any] = {
            "train": partial(recording_finetune, recipe=recipe, log=str(log), disturbance=disturbance, step_s=step_s),
            "data": self._data,
            "epochs": 4,
            "seed": 3,
            "cache": CacheSpec(path=str(self._folder / "cache"), quota_bytes=1 << 24, min_free_bytes=0),
            "storage": str(self._folder / "runs"),
            "checkpoint_every": 2,
        }
        return Job(name=name, **(defaults | options))

    def metrics(self, name: str) -> dict[int, dict[str, list[float]]]:
        """Loss and gradient norm of each step, by rank.

        A repeated step counts as its last attempt.
        """
        sizes, rows = {each.step: each.size for each in self.attempts(name)}, cast("dict[str, Any]", self.rows(name))
        return {
            step: {kind: [rows[f"{step:05}-{rank}"][kind] for rank in range(size)] for kind in SAVED}
            for step, size in sorted(sizes.items())
        }

    def norms(self, name: str) -> list[float]:
        """Gradient norm of each step, which all ranks have alike."""
        return [values["grad_norm"][0] for values in self.metrics(name).values()]

    def difference(self, name: str, other: str) -> float:
        """Largest difference of a loss or gradient norm.

        Over the steps that both runs have made.

        The loss of a step is the mean of what its ranks report, in every world.
        """
        ours, theirs = self.metrics(name), self.metrics(other)
        return max(
            abs(_mean(ours[step][kind]) - _mean(theirs[step][kind])) for step in ours.keys() & theirs for kind in SAVED
        )


class _RecordingWorker:
    """Worker that logs each step before its commit."""

    def __init__(self, worker: Worker, steps: StepRecord) -> None:
        self._worker, self._steps = worker, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def commit(self, **metrics: Any) -> None:
        self._steps.write({name: float(scalar(name, metrics[name])) for name in SAVED})
        self._worker.commit(**metrics)


def recording_finetune(worker: Worker, *, recipe: Recipe, log: str, disturbance: Disturbance, step_s: float) -> None:
    """Fine-tune, and record each step.

    Writes per step and rank one file with its loss and gradient norm, and one line.
    """
    recorded = _RecordingWorker(worker, StepRecord(worker, log, disturbance, step_s))
    finetune(recipe, cast("Worker", recorded))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
