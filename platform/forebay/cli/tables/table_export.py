"""Export of the embedding tables of a run: rows in the order of their ids, as safetensors and as NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.checkpoint.encoded import CorruptCheckpoint
from forebay.checkpoint.parts.stored_state import StoredState, open_state
from forebay.errors import CorruptFile, InvalidOption
from forebay.llm.hf_folder.exporting import found_step, stored_checkpoints
from forebay.llm.hf_folder.safetensors_files import Weight, write_safetensors
from forebay.llm.hf_folder.sealed_folder import SealedFolder
from forebay.storage.filesystem import resolve
from forebay.train.tables.layout import TableLayout
from forebay.train.tables.owned_rows import DECAYED, WEIGHT, decayed

_SEAL = "tables.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """Table of an export. `files` are its safetensors, its rows as a NumPy array, and the id of each row."""

    name: str
    rows: int
    dim: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTables:
    """Folder of exported tables of the checkpoint of `step`. `is_new` is False if it had this content before."""

    folder: str
    run: str
    step: int
    tables: tuple[ExportedTable, ...]
    is_new: bool


def export_tables_of(name: str, to: str, *, storage: str = "runs", step: int | None = None) -> ExportedTables:
    """Write the tables of a checkpoint of the run `name` into the folder `to`.

    For the table `user`: `user.safetensors` with `weight` float32 [rows, dim] and `ids` int64 [rows], and the same as
    `user.npy` and `user.ids.npy`, which `numpy.load(..., mmap_mode="r")` maps. `tables.json` comes last.

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
            tables = _saved_tables(state, name)
            exported = tuple(_facts(state, each, tables) for each in tables["rows"])
            is_new = folder.start()
            if is_new:
                for each in exported:
                    _write(folder, each, _rows_by_id(state, each.name, tables))
                folder.seal(json.dumps([asdict(each) for each in exported], indent=1).encode())
    except CorruptCheckpoint as error:
        raise CorruptFile(f"the checkpoint {files.uri_of(found)} is corrupt: {error}.", step=found) from error
    return ExportedTables(folder=folder.uri, run=name, step=found, tables=exported, is_new=is_new)


def _saved_tables(state: StoredState, run: str) -> Mapping[str, Any]:
    objects: Mapping[str, Any] = state.head.get("objects", {})
    if "tables" not in objects:
        raise InvalidOption(
            f"run {run!r} has no fb.Table: its checkpoint has the states of {', '.join(sorted(objects)) or 'nothing'}. "
            "For a language model there is `forebay export`.",
            name=run,
        )
    tables: Mapping[str, Any] = objects["tables"]
    return tables


def _facts(state: StoredState, name: str, tables: Mapping[str, Any]) -> ExportedTable:
    facts = state.facts(tables["rows"][name][WEIGHT])
    assert facts is not None, "a table has rows"
    rows, dim = facts[0]
    return ExportedTable(name=name, rows=rows, dim=dim, files=(f"{name}.safetensors", f"{name}.npy", f"{name}.ids.npy"))


def _rows_by_id(state: StoredState, name: str, tables: Mapping[str, Any]) -> Tensor:
    """Return the rows as a lookup finds them, in the order of ids."""
    saved = tables["rows"][name]
    weight = state.tensor(saved[WEIGHT])
    if DECAYED in saved:
        weight = decayed(weight, state.tensor(saved[DECAYED]), tables["decay"][name])
    return weight.index_select(0, TableLayout(len(weight)).places(torch.arange(len(weight))).long())


def _write(folder: SealedFolder, table: ExportedTable, rows: Tensor) -> None:
    ids = torch.arange(table.rows)
    weights = [
        Weight(name=name, shape=tuple(each.shape), dtype=each.dtype, read=lambda each=each: each)  # type: ignore[misc]
        for name, each in (("weight", rows), ("ids", ids))
    ]
    safetensors, array, ids_array = table.files
    with folder.stream(safetensors) as out:
        write_safetensors(out, weights)
    for name, values in ((array, rows), (ids_array, ids)):
        with folder.stream(name) as out:
            np.save(out, values.numpy())
