"""Loader as a `LightningDataModule`. Checked with Lightning 2.6."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from forebay.bridges.equal_parts import validate_equal_parts
from forebay.bridges.torch import as_dataset
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import SourceProvider
from forebay.data.loader.data import Data
from forebay.data.loader.loader import Loader
from forebay.data.plan.cursor import Cursor
from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package
from forebay.world import World


def data_module(data: Data, cache: DiskCache | SourceProvider | None = None) -> Any:
    """Return a `LightningDataModule` over `data`.

    It keeps the cursor in Lightning's checkpoints.

    ```python
    data = fb.Data(plan=plan, transform=transform, global_batch=8192, last="drop")
    Trainer(...).fit(model, datamodule=fb.bridges.lightning.data_module(data, cache), ckpt_path="last")
    ```

    `global_batch` are the rows of a step over all devices, of any number: rank and number come from the `Trainer`.
    A checkpoint in mid-epoch continues with the next row. Needs `lightning` 2.5 or later.

    Raises:
        InvalidOption: `data` is not an `fb.Data`. At the start of the fit: ranks would get parts of different sizes.
        MissingPackage: `lightning` is missing or too old.
    """
    if not isinstance(data, Data):
        raise InvalidOption(
            f"data={data!r:.200}: give fb.Data(plan=..., transform=..., global_batch=..., last='drop')."
        )
    return _module_class()(data, cache)


def _module_class() -> Any:
    with extra_package("lightning", "fb.bridges.lightning"):
        from lightning import LightningDataModule  # noqa: PLC0415 - an extra

    class LoaderDataModule(LightningDataModule):  # type: ignore[misc]
        """Data module over one loader per fit."""

        # Lightning files the state below this name.
        __qualname__ = "LoaderDataModule"

        def __init__(self, data: Data, cache: DiskCache | SourceProvider | None) -> None:
            super().__init__()
            self._data, self._cache = data, cache
            self._cursor = data.start
            self._loader: Loader | None = None

        def train_dataloader(self) -> DataLoader[Any]:
            """Batches of this rank, from the restored cursor on."""
            world = World(rank=self.trainer.global_rank, size=self.trainer.world_size)
            data = self._data
            validate_equal_parts(data.plan, global_batch=data.global_batch, last=data.last, world_size=world.size)
            self.teardown("fit")
            self._loader = loader = Loader(data, self._cache, world=world)
            loader.seek(self._cursor)
            return DataLoader(as_dataset(loader), batch_size=None)

        def state_dict(self) -> dict[str, Any]:
            """Return the cursor after the last batch Lightning took.

            It takes none ahead of a step.
            """
            cursor = self._cursor if self._loader is None else self._loader.cursor()
            return {"cursor": cursor.to_dict()}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Continue from a checkpoint.

            Raises `CursorMismatch` for another plan.
            """
            self._cursor = Cursor.from_dict(state_dict["cursor"])
            self._data.validate_cursor(self._cursor, step=self.trainer.global_step if self.trainer else 0)

        def teardown(self, stage: str) -> None:  # noqa: ARG002 - of the hook
            """End the loader's threads, and remember its cursor."""
            if self._loader is not None:
                self._cursor = self._loader.cursor()
                self._loader.close()
                self._loader = None

    return LoaderDataModule
