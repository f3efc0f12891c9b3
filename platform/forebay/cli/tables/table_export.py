"""Export of a run's embedding tables.

Rows are in the order of their ids, as safetensors and as NumPy arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from forebay.errors import CorruptFile, InvalidOption
from forebay.llm.hf_folder.exporting import found_step, stored_checkpoints
from forebay.llm.hf_folder.safetensors_files import Weight, write_safetensors
from forebay.llm.hf_folder.sealed_folder import SealedFolder
from forebay.storage.filesystem import resolve
from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.parts.stored_state import open_state
from forebay.training.tables.owned_rows import WEIGHT
from forebay.training.tables.warm_start.saved_tables import SavedTables

_SEAL, _IDS, _SHARED = "tables.json", "ids", "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """Table of an export.

    `files` are its safetensors, its rows as a NumPy array, and the id of each row.

    An open table has one more, the row of all other ids. `padding_id` stands for no id: its row is zero.
    """

    name: str
    rows: int
    dim: int
    files: tuple[str, ...]
    padding_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTables:
    """Folder of exported tables of the checkpoint of `step`.

    `is_new` is False if it had this content before.
    """

    folder: str
    run: str
    step: int
    tables: tuple[ExportedTable, ...]
    is_new: bool


def export_tables_of(name: str, to: str, *, storage: str = "runs", step: int | None = None) -> ExportedTables:
    """Write the tables of a checkpoint into the folder `to`.

    The checkpoint is one of the run `name`.

    For the table `user`: `user.safetensors` with `weight` float32 [rows, dim] and `ids` int64 [rows], and the same as
    `user.npy` and `user.ids.npy`, which `numpy.load(..., mmap_mode="r")` maps. Rows are in the order of ids. An open
    table has `shared` [1, dim] and `user.shared.npy` too, the row of all other ids. `tables.json` comes last.

    Raises:
        InvalidOption: There is no such run or step, it has no tables, or the folder has other content.
        CorruptFile: The checkpoint is damaged.
        WriteFailed: Storage refused a file.
    """
    files = stored_checkpoints(resolve(storage), name)
    found, checksum = found_step(files, name, step)
    folder = SealedFolder(
        to, {"run": name, "step": found, "content": "tables", "dtype": "fp32", "checkpoint": checksum}, _SEAL
    )
    try:
        with open_state(files, found) as state, folder.writing():
            tables = SavedTables(state, found)
            if not tables.names:
                raise InvalidOption(
                    f"run {name!r} has no fb.Table in its checkpoint of step {found}. For a language model there is "
                    "`forebay llm export`.",
                    name=name,
                )
            exported = tuple(_facts(tables, each) for each in tables.names)
            is_new = folder.start()
            if is_new:
                for each in exported:
                    _write(folder, each, _arrays(tables, each.name))
                folder.seal(json.dumps([asdict(each) for each in exported], indent=1).encode())
    except CorruptCheckpoint as error:
        raise CorruptFile(f"the checkpoint {files.uri_of(found)} is corrupt: {error}.", step=found) from error
    return ExportedTables(folder=folder.uri, run=name, step=found, tables=exported, is_new=is_new)


def _facts(tables: SavedTables, name: str) -> ExportedTable:
    rows, dim = tables.shape(name)
    more = () if tables.shared_row(name) is None else (f"{name}.{_SHARED}.npy",)
    return ExportedTable(
        name=name,
        rows=rows,
        dim=dim,
        files=(f"{name}.safetensors", f"{name}.npy", f"{name}.ids.npy", *more),
        padding_id=tables.padding_id(name),
    )


def _arrays(tables: SavedTables, name: str) -> dict[str, Tensor]:
    """Return a table's rows and ids, sorted by id.

    Rows are as lookups find them. An open table has a shared row too.
    """
    pieces = list(tables.pieces(name, with_state=False))
    # An open table may have no row yet.
    ids, order = torch.cat([torch.zeros(0, dtype=torch.int64), *(each.ids for each in pieces)]).sort()
    weight = torch.cat([torch.zeros(0, tables.shape(name)[1]), *(each.tensors[WEIGHT] for each in pieces)])
    rows = weight.index_select(0, order)
    if (padding := tables.padding_id(name)) is not None:
        rows[ids == padding] = 0.0
    found = {WEIGHT: rows, _IDS: ids}
    shared = tables.shared_row(name)
    return found if shared is None else {**found, _SHARED: shared[WEIGHT]}


def _write(folder: SealedFolder, table: ExportedTable, arrays: Mapping[str, Tensor]) -> None:
    weights = [
        Weight(name=name, shape=tuple(each.shape), dtype=each.dtype, read=lambda each=each: each)  # type: ignore[misc]
        for name, each in arrays.items()
    ]
    safetensors, *files = table.files
    with folder.stream(safetensors) as out:
        write_safetensors(out, weights)
    for name, values in zip(files, arrays.values(), strict=True):
        with folder.stream(name) as out:
            np.save(out, values.numpy())
