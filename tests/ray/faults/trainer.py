"""A trainer that may be killed. It writes each batch to disk before it requests the next one."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.soak.dataset import SoakSetting
from tests.soak.epoch import Seen, take_steps

import forebay as fb


@dataclass(frozen=True)
class Journal:
    """The batches of an epoch in files of a folder. Each file is complete or absent."""

    folder: Path

    def write(self, number: int, step: tuple[int, int, list[dict[str, np.ndarray]]], cursor: fb.Cursor) -> None:
        position, size, parts = step
        arrays = {f"{rank}/{name}": array for rank, part in enumerate(parts) for name, array in part.items()}
        part = self.folder / f".{os.getpid()}"
        with part.open("wb") as file:
            np.savez(file, cursor=cursor.to_json(), place=[position, size, len(parts)], **arrays)
        part.rename(self.folder / f"{number:06d}-{position:09d}.npz")

    def __len__(self) -> int:
        return len(self._files())

    def cursor(self) -> fb.Cursor | None:
        """Cursor of the next batch."""
        if not (files := self._files()):
            return None
        with np.load(files[-1]) as held:
            return fb.Cursor.from_json(str(held["cursor"]))

    def seen(self) -> Seen:
        """All batches, in the order of their delivery."""
        seen = Seen()
        for path in self._files():
            with np.load(path) as held:
                position, size, ranks = held["place"].tolist()
                parts: list[dict[str, np.ndarray]] = [{} for _ in range(ranks)]
                for field in held.files:
                    rank, slash, name = field.partition("/")
                    if slash:
                        parts[int(rank)][name] = held[field]
            seen.steps.append((position, size, parts))
        return seen

    def pid(self) -> int | None:
        """The id of the process that writes it."""
        path = self.folder / "pid"
        return int(path.read_text()) if path.exists() else None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.npz"))


def train(setting: SoakSetting, folder: Path, pause_s: float) -> int:
    """Train the rest of the epoch, from the end of the journal in `folder`. Returns the number of steps."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder)
    cursor, number = journal.cursor(), len(journal)
    if cursor is not None and cursor.epoch != setting.epoch:
        return 0
    pid = folder / f".pid-{os.getpid()}"
    pid.write_text(str(os.getpid()))
    pid.rename(folder / "pid")
    seen = Seen()
    with ExitStack() as opened:
        loaders = [opened.enter_context(setting.loader(rank)) for rank in range(setting.ranks)]
        for loader in loaders:
            if cursor is not None:
                loader.seek(cursor)

        def note(step: int) -> None:
            if step:
                journal.write(number + step - 1, seen.steps[-1], loaders[0].cursor())
                time.sleep(pause_s)

        take_steps(setting, [iter(loader) for loader in loaders], seen, note)
    return len(seen.steps)


def train_on(node_id: str, setting: SoakSetting, folder: Path, pause_s: float = 0.0) -> Any:
    """Run `train` as a task on a node. Returns a reference. Ray does not retry it."""
    task = ray.remote(train).options(
        num_cpus=1, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
    )
    return task.remote(setting, folder, pause_s)
