"""Measurements of one training, the same for every trainer: taken where PyTorch's optimizer ends a step."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.llm.setting import LlmSetting
from bench.processes import peak_bytes


class Probe:
    """Counts the tokens that a model sees, and reads the clocks at the end of each step of any optimizer.

    After the last step it writes the figures to `answer.RANK`, and ends the process: no trainer saves its model.
    """

    def __init__(self, setting: LlmSetting, answer: str, rank: int | None = None) -> None:
        self._setting = setting
        self._answer = f"{answer}.{setting.rank if rank is None else rank}"
        self.model: Any = None
        self._steps: list[dict[str, Any]] = []
        self._tokens = self._slots = 0
        self._documents: list[str] = []
        self._paused_cpu_s = self._paused_s = 0.0
        self._hook = register_optimizer_step_post_hook(self._end_step)

    def close(self) -> None:
        """Leave the optimizers of this process: a later training would end it."""
        self._hook.remove()

    def watch(self, whole: Any, inner: Any) -> None:
        """Count what the models of a class of transformers see.

        Args:
            whole: The class with the head, whose weights are kept.
            inner: The class below the head, which is called also by those that compute the loss themselves.
        """
        build, forward = whole.__init__, inner.forward
        built: list[Any] = []

        @functools.wraps(build)
        def kept(model: Any, *arguments: Any, **options: Any) -> None:
            build(model, *arguments, **options)
            built.append(model)

        # Trainers read the signature.
        @functools.wraps(forward)
        def counted(model: Any, *arguments: Any, **options: Any) -> Any:
            ids = options["input_ids"] if "input_ids" in options else arguments[0]
            # A model without memory is one whose FLOPs are counted.
            if model.training and not ids.is_meta:
                self.model = next((each for each in built if each.model is model), self.model)
                self.see(ids, options.get("position_ids"))
            return forward(model, *arguments, **options)

        whole.__init__, inner.forward = kept, counted

    def see(self, ids: Tensor, positions: Tensor | None = None) -> None:
        """Count the token ids [rows, n] of one pass. Padding is known by its id, which is in no document."""
        is_token = ids != self._setting.pad
        self._tokens += int(is_token.sum())
        self._slots += ids.numel()
        if self._setting.record:
            for number, row in enumerate(ids.tolist()):
                place = None if positions is None else positions[min(number, len(positions) - 1)].tolist()
                self._documents += _digests(row, place, self._setting.pad)

    def _end_step(self, *_: Any) -> None:
        cpu_s, now = time.process_time() - self._paused_cpu_s, time.time() - self._paused_s
        step = {"cpu_s": cpu_s, "wall_s": now - self._setting.began, "tokens": self._tokens, "slots": self._slots}
        self._steps.append(step | ({"documents": sorted(self._documents)} if self._setting.record else {}))
        self._tokens = self._slots = 0
        self._documents = []
        self._snapshot()
        if len(self._steps) == self._setting.steps:
            self._finish()
        self._paused_cpu_s = time.process_time() - cpu_s
        self._paused_s = time.time() - now

    def _snapshot(self) -> None:
        number = len(self._steps)
        if self._setting.snapshots and number % self._setting.snapshot_every == 0:
            arrays = {name: value.detach().numpy() for name, value in self.model.state_dict().items()}
            np.savez(f"{self._setting.snapshots}/{number}.npz", **arrays)

    def _finish(self) -> None:
        draft = Path(f"{self._answer}.draft")
        facts = {"steps": self._steps, "peak_bytes": peak_bytes()}
        draft.write_text(json.dumps(facts))
        draft.rename(self._answer)
        if self._setting.processes > 1:
            time.sleep(2)  # A process that leaves first would break the others' last exchange.
        os._exit(1 if self._setting.kill else 0)


def _digests(ids: list[int], positions: list[int] | None, pad: int) -> list[str]:
    """Digest of each document of a row. One begins where positions begin again."""
    starts = [0] if positions is None else [at for at, position in enumerate(positions) if position == 0]
    found = []
    for low, high in zip(starts, [*starts[1:], len(ids)], strict=True):
        document = [each for each in ids[low:high] if each != pad]
        if document:
            found.append(hashlib.sha256(np.array(document, np.int32).tobytes()).hexdigest()[:16])
    return found
