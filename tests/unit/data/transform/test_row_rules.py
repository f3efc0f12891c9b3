"""Rules leave out rows before the epoch: exact counts, every accepted row once, and a record of the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.loader.data import Data
from forebay.errors import InvalidOption, MissingColumn, NoFiles, TransformFailed, Unfingerprintable, WrongType
from forebay.training.runs.timeline.origin import data_facts

FILES = {"day=1/a.parquet": [30, 1, 0, 50], "day=2/b.parquet": [7, 64]}
IDS = fb.Transform(id=fb.Label("id", dtype="int64"))
Folder = Callable[..., Path]


def at_least(batch: pa.RecordBatch, least: int) -> Any:
    return pc.greater_equal(batch["id"], least)


def by_numpy(batch: pa.RecordBatch) -> Any:
    return batch["id"].to_numpy() % 3 != 0


def with_nulls(batch: pa.RecordBatch) -> Any:
    ids = batch["id"]
    return pc.if_else(pc.equal(pc.bit_wise_and(ids, 1), 0), pa.scalar(None, pa.bool_()), True)


def drops(batch: pa.RecordBatch) -> Mapping[str, Any]:
    """A transform that returns fewer rows: those that it leaves out are rejected."""
    ids = batch["id"].to_numpy()
    return {"id": ids[ids % 5 != 0].astype("int64")}


RULES: dict[str, tuple[Any, Callable[[int], bool]]] = {
    "numpy": (by_numpy, lambda number: number % 3 != 0),
    "arrow": (partial(at_least, least=40), lambda number: number >= 40),
    "nulls": (with_nulls, lambda number: number % 2 == 1),
    "transform": (fb.Transform(fn=drops, version="1"), lambda number: number % 5 != 0),
}


def trained_ids(manifest: fb.Manifest, transform: fb.Transform, size: int) -> list[int]:
    found: list[int] = []
    for rank in range(size):
        plan = fb.build_plan(manifest, seed=3, lanes=6)
        with fb.Loader(plan, transform, global_batch=16, world=fb.World(rank=rank, size=size)) as loader:
            found += [number for batch in loader if batch.weight for number in batch["id"].tolist()]
    return sorted(found)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("where", [None, "id >= 20"])
def test_every_accepted_row_comes_once_and_the_others_are_counted(
    parquet_folder: Folder, tmp_path: Path, name: str, where: str | None
) -> None:
    rule, accepts = RULES[name]
    whole = fb.scan(parquet_folder(FILES), where=where)
    manifest = whole.keep(rule)
    before = range(20 if where else 0, 152)
    left = [number for number in before if accepts(number)]
    transform = rule if name == "transform" else IDS
    assert trained_ids(manifest, transform, 1) == trained_ids(manifest, transform, 3) == left
    kept = manifest.kept
    assert kept is not None and kept.where == (where or "")
    assert (manifest.num_rows, kept.rejected_rows) == (len(left), len(before) - len(left))
    for path in (tmp_path / "m.json", tmp_path / "m.parquet"):
        manifest.save(path)
        loaded = fb.Manifest.load(path)
        assert loaded == manifest and loaded.kept is not None
        assert (loaded.kept.rules, loaded.kept.rejected_rows) == (kept.rules, kept.rejected_rows)
    facts = data_facts(Data(plan=fb.build_plan(manifest), transform=transform, global_batch=8))
    assert (facts["rules"], facts["rejected_rows"]) == (kept.rules[0], kept.rejected_rows)


def test_rules_join_and_the_rows_decide_the_plan(parquet_folder: Folder) -> None:
    whole = fb.scan(parquet_folder(FILES))
    first, other = partial(at_least, least=40), partial(at_least, least=41)
    once = whole.keep(first, columns=["id"])
    both = once.keep(by_numpy)
    assert once.kept is not None and both.kept is not None
    assert both.kept.rules[:1] == once.kept.rules and len(both.kept.rules) == 2
    assert (once.kept.rejected_rows, both.kept.rejected_rows) == (40, 40 + 37)
    # Another version of a rule that accepts the same rows gives the same plan, with its own fingerprint in the record.
    again, changed = whole.keep(first, columns=["id"], version="2"), whole.keep(other)
    assert again.kept is not None and again.kept.rules != once.kept.rules
    assert again.id == once.id != changed.id
    assert fb.build_plan(once).id == fb.build_plan(again).id != fb.build_plan(changed).id


def test_a_rule_gets_its_columns_and_paths_and_only_rows_that_are_left(tmp_path: Path) -> None:
    columns = {"x": range(10), "user": [None if number == 9 else {"age": number, "name": "a"} for number in range(10)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=5)
    seen: list[tuple[list[str], int]] = []

    def rule(batch: pa.RecordBatch) -> Any:
        seen.append((batch.schema.names, batch.num_rows))
        return pc.less(batch["user.age"], 8)

    manifest = fb.scan(tmp_path, where="x > 2").keep(rule, columns=["user.age", "x"], version="1")
    assert manifest.num_rows == 5 and manifest.kept is not None and manifest.kept.rejected_rows == 2
    assert sorted(seen) == [(["user.age", "x"], 2), (["user.age", "x"], 5)]


def test_null_labels_are_dropped_by_the_transform_itself(tmp_path: Path) -> None:
    labels = [None if number % 4 == 0 else number % 2 for number in range(50)]
    pq.write_table(pa.table({"id": range(50), "label": labels}), tmp_path / "a.parquet", row_group_size=20)
    transform = fb.Transform(id=fb.Dense("id", dtype="int64"), label=fb.Label("label"))
    manifest, filtered = fb.scan(tmp_path).keep(transform), fb.scan(tmp_path, where="label is not None")
    assert manifest.kept is not None and filtered.kept is not None
    assert manifest.kept.mask.digest == filtered.kept.mask.digest
    assert manifest.kept.rejected_rows == 13


@pytest.mark.parametrize(
    ("rule", "options", "error", "text"),
    [
        (5, {}, InvalidOption, "give a function of a RecordBatch, or an fb.Transform"),
        (IDS, {"columns": ["id"]}, InvalidOption, "has its own columns and version"),
        (IDS, {"version": "1"}, InvalidOption, "has its own columns and version"),
        (by_numpy, {"columns": ["idd"]}, MissingColumn, "Did you mean 'id'"),
        (by_numpy, {"columns": "idd"}, MissingColumn, "no column 'idd'"),
        (by_numpy, {"columns": ["id", "id"]}, InvalidOption, "each once"),
        (by_numpy, {"columns": []}, InvalidOption, "at least one column"),
        (fb.Transform(x=fb.Label("tags")), {}, WrongType, "numbers and bools"),
        (lambda batch: batch["none"], {}, TransformFailed, r"raised KeyError.*[^.]\. It must return False for a row"),
        (lambda batch: [True] * batch.num_rows, {}, TransformFailed, "returned list for .* rows. Return one bool"),
        (lambda batch: np.ones(batch.num_rows), {}, TransformFailed, r"returned float64 \(\d+,\)"),
        (lambda batch: np.ones(3, dtype=bool), {}, TransformFailed, r"returned bool \(3,\) for"),
        (lambda batch: pc.less(batch["id"], 0), {}, NoFiles, "accepts none of 152 rows"),
        (partial(at_least, least=object()), {}, Unfingerprintable, "Give it a version"),
    ],
)
def test_rules_that_cannot_work_are_refused(
    parquet_folder: Folder, rule: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        fb.scan(parquet_folder(FILES)).keep(rule, **options)


def test_saved_rules_are_texts(parquet_folder: Folder, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    fb.scan(parquet_folder(FILES)).keep(by_numpy).save(path)
    path.write_text(path.read_text().replace('"rejected_rows": ', '"rejected_rows": -'))
    with pytest.raises(InvalidOption, match="a number of rows below 0"):
        fb.Manifest.load(path)
