"""Files in columns: the same files, in few bytes."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from studies.data_plane.lake import lake

from forebay.data.manifest.manifest import File, FileTable, Manifest
from forebay.data.plan.plan import Plan, build_plan

FILES = (
    File(path="day=1/\xe4.parquet", size=5, mtime_ns=-3, etag='"x"'),
    File(path="day=2/\udcff.parquet", size=1 << 40, mtime_ns=7, stamp="3.4", constants=(("day", "2"), ("k", None))),
    File(path="day=3/c", size=0, mtime_ns=1 << 62, constants=(("day", "2"), ("k", None)), stored=(("a", "b", "int8"),)),
)


@pytest.mark.parametrize("files", [(), FILES[:1], FILES[:2], FILES])
def test_files_come_out_as_they_went_in(files: tuple[File, ...]) -> None:
    table = FileTable(files)
    assert tuple(table) == files and len(table) == len(files) and table == files and table[1:] == files[1:]
    assert [table[index] for index in range(-len(files), 0)] == list(files)
    assert list(table.paths()) == [file.path for file in files]
    copy = pickle.loads(pickle.dumps(table))
    assert copy == table and hash(copy) == hash(table) == hash(files)
    assert table != (*files, FILES[0]) and table != 5
    with pytest.raises(IndexError):
        table[len(files)]


def test_a_number_that_is_none_of_64_bits_is_kept() -> None:
    assert FileTable([File(path="a", size=1 << 70, mtime_ns=0)])[0].size == 1 << 70


def test_a_pickle_has_the_id_and_the_arrays_stay_read_only(memory_manifest: Callable[..., Manifest]) -> None:
    manifest = memory_manifest([3, 4, 5])
    assert "id" not in pickle.loads(pickle.dumps(manifest)).__dict__
    known = manifest.id
    copy = pickle.loads(pickle.dumps(manifest))
    assert copy.__dict__["id"] == known and copy == manifest
    assert not copy.rows.flags.writeable
    rows = np.array([3, 4, 5])
    other = Manifest(**{name: getattr(manifest, name) for name in manifest.__dataclass_fields__} | {"rows": rows})
    rows[0] = 9
    assert other.rows.tolist() == [3, 4, 5], "not the caller's array"


def test_a_plan_in_a_rank_takes_few_bytes_for_each_row_group_and_file() -> None:
    groups, files = 20_000, 2_000
    plan = build_plan(lake(groups), seed=1, lanes=1024)
    payload = pickle.dumps(plan)
    assert len(payload) < 34 * groups + 120 * files + 8_000
    tracemalloc.start()
    copy: Plan = pickle.loads(payload)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert copy.id == plan.id
    # 32 of the manifest and 4 of the plan; a lane has two numbers
    assert held < 38 * groups + 120 * files + 2 * 16 * 1024 + 40_000
