"""Loader as a `LightningDataModule`. Checked with Lightning 2.6."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from forebay.bridges.torch import LoaderDataset
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import SourceProvider
from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.loader.loader import Loader
from forebay.data.plan.cursor import Cursor
from forebay.errors import InvalidOption, validate_type
from forebay.runtime.extras import extra_package
from forebay.world import World


def data_module(data: Data, cache: DiskCache | SourceProvider | None = None, *, held_out: Data | None = None) -> Any:
    """Return a `LightningDataModule` over `data`.

    It keeps the cursor in Lightning's checkpoints.

    ```python
    data = fb.Data(plan=plan, transform=transform, global_batch=8192, last="drop")
    Trainer(...).fit(model, datamodule=fb.bridges.lightning.data_module(data, cache), ckpt_path="last")
    ```

    `global_batch` are the rows of a step over all devices, of any number: rank and number come from the `Trainer`.
    A checkpoint in mid-epoch continues with the next row, and a new `Trainer` without one begins at the first row.
    Each epoch of the `Trainer` is one of the plan, also where `limit_train_batches` cuts it. Every validation, and the
    sanity check before the fit, begins at the first row of `held_out`. Needs `lightning` 2.5 or later.

    Raises:
        InvalidOption: `data` or `held_out` is not an `fb.Data`. At the start of the fit: ranks would get parts of
            different sizes.
        MissingPackage: `lightning` is missing or too old.
    """
    if not isinstance(data, Data):
        raise InvalidOption(
            f"data={data!r:.200}: give fb.Data(plan=..., transform=..., global_batch=..., last='drop')."
        )
    validate_type("held_out", held_out, Data | None, "fb.Data(plan=..., transform=..., global_batch=..., last='drop')")
    return _module_class()(data, cache, held_out)


class HeldOutRows(LoaderDataset):
    """Batches of the first epoch, in each iteration."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches, wherever the last iteration was left."""
        self.loader.seek(self.loader.data.start)
        yield from super().__iter__()


class TrainerEpochs(LoaderDataset):
    """Batches of the epoch of a Lightning `Trainer`."""

    def __init__(self, loader: Loader, trainer: Any) -> None:
        super().__init__(loader)
        self._trainer, self._taken = trainer, loader.cursor()

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the epoch.

        Its first batches in each epoch with `overfit_batches`.
        """
        loader = self.loader
        if self._trainer.overfit_batches:
            loader.seek(loader.data.start)
        elif self._trainer.current_epoch > loader.epoch:  # `limit_train_batches` has cut the one before
            loader.seek(replace(loader.cursor(), epoch=self._trainer.current_epoch, position=0))
        for batch in super().__iter__():
            self._taken = replace(self._taken, epoch=batch.epoch, position=batch.position)
            yield batch

    def cursor(self) -> Cursor:
        """Cursor of the next batch to train on.

        Lightning takes none ahead of a step. Where a step raised, its batch is the next one.
        """
        progress = self._trainer.fit_loop.epoch_loop.batch_progress.current
        return self._taken if progress.ready > progress.processed else self.loader.cursor()


class LoaderHooks:
    """Hooks of a data module over one loader per fit."""

    trainer: Any

    def __init__(self, data: Data, cache: DiskCache | SourceProvider | None, held_out: Data | None) -> None:
        super().__init__()
        self._data, self._cache, self._held_out = data, cache, held_out
        self._cursor = data.start
        self._batches: TrainerEpochs | None = None
        self._validated: HeldOutRows | None = None
        if held_out is not None:  # else Lightning warns of steps that no loader feeds
            self.val_dataloader = self._held_out_batches

    def setup(self, stage: str) -> None:
        """Begin at the first row, unless this trainer has trained."""
        if stage == "fit" and not self.trainer.fit_loop.epoch_loop.batch_progress.total.ready:
            self._cursor = self._data.start

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of this rank, from the restored cursor on."""
        self._end_training()
        loader = self._open(self._data)
        loader.seek(self._cursor)
        self._batches = TrainerEpochs(loader, self.trainer)
        return DataLoader(self._batches, batch_size=None)

    def _held_out_batches(self) -> DataLoader[Any]:
        assert self._held_out is not None
        self._end_validation()
        self._validated = HeldOutRows(self._open(self._held_out))
        return DataLoader(self._validated, batch_size=None)

    def _open(self, data: Data) -> Loader:
        return Loader(data, self._cache, world=World(rank=self.trainer.global_rank, size=self.trainer.world_size))

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor of the next batch to train on."""
        cursor = self._cursor if self._batches is None else self._batches.cursor()
        return {"cursor": cursor.to_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint.

        Raises `CursorMismatch` for another plan.
        """
        cursor = Cursor.from_dict(state_dict["cursor"])
        self._data.validate_cursor(cursor, step=self.trainer.global_step if self.trainer else 0)
        self._end_training()  # of a search for a learning rate
        self._cursor = cursor

    def teardown(self, stage: str) -> None:  # noqa: ARG002 - of the hook
        """End the threads of the loaders, and remember the cursor."""
        self._end_training()
        self._end_validation()

    def _end_training(self) -> None:
        if self._batches is not None:
            self._cursor = self._batches.cursor()
            self._batches.loader.close()
            self._batches = None

    def _end_validation(self) -> None:
        if self._validated is not None:
            self._validated.loader.close()
            self._validated = None

    def __reduce__(self) -> tuple[Any, ...]:
        # For a spawned process: this class has no place in the module.
        empty = partial(data_module, self._data, self._cache, held_out=self._held_out)
        return empty, (), self.__dict__ | {"_batches": None, "_validated": None}


def _module_class() -> Any:
    with extra_package("lightning", "fb.bridges.lightning"):
        from lightning import LightningDataModule  # noqa: PLC0415 - an extra

    class LoaderDataModule(LoaderHooks, LightningDataModule):  # type: ignore[misc]
        # Lightning files the state below this name.
        __qualname__ = "LoaderDataModule"

    return LoaderDataModule
