"""The loader delivers a mixture's order for any cache and world, with the dataset of every row."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import forebay as fb
from forebay.errors import CursorMismatch, InvalidOption, MissingColumn, TransformFailed

FILES = {
    "web": {"a.parquet": [30, 1, 0, 50], "b.parquet": [7, 64]},
    "code": {"a.parquet": [20, 25]},
    "books": {"a.parquet": [5]},
}
WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}
STAGES = [(0, {"web": 1.0, "code": 1.0}), (100, {"web": 0.2, "books": 0.8}), (190, WEIGHTS)]
TRANSFORM = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x0", "x1"]))
Rows = list[tuple[int, int]]


@dataclass(frozen=True)
class Mixed:
    """A mixture over files. `loader(...)` fills in the rest."""

    plan: fb.Mixture

    def loader(self, cache: fb.DiskCache | None = None, *, global_batch: int = 16, **options: object) -> fb.Loader:
        return fb.Loader(self.plan, TRANSFORM, cache, global_batch=global_batch, **options)  # type: ignore[arg-type]

    def planned(self, epoch: int, global_batch: int = 16, start: int = 0) -> list[Rows]:
        """(dataset, id) of each row of each batch that the plan promises."""
        first_id = np.concatenate([np.cumsum(manifest.rows) - manifest.rows for manifest in self.plan.manifests])
        source = np.repeat(np.arange(3), [len(manifest) for manifest in self.plan.manifests])
        batches, position = [], start
        while size := self.plan.batch_size(position, global_batch):
            block, row = self.plan.batch(epoch, position, global_batch)
            batches.append(list(zip(source[block].tolist(), (first_id[block] + row).tolist(), strict=True)))
            position += size
        return batches


Plans = dict[str, fb.Plan]


@pytest.fixture
def manifests(parquet_folder: Callable[..., Path]) -> dict[str, fb.Manifest]:
    return {name: fb.scan(str(parquet_folder(files, folder=name))) for name, files in FILES.items()}


def plans_of(manifests: dict[str, fb.Manifest], lanes: dict[str, int]) -> Plans:
    return {
        name: fb.build_plan(manifest, seed=7, lanes=lanes[name], shuffle_rows=16)
        for name, manifest in manifests.items()
    }


@pytest.fixture
def plans(manifests: dict[str, fb.Manifest]) -> Plans:
    return plans_of(manifests, {"web": 6, "code": 4, "books": 4})


@pytest.fixture
def wide_plans(manifests: dict[str, fb.Manifest]) -> Plans:
    return plans_of(manifests, {"web": 24, "code": 16, "books": 17})


KINDS = ("all", "first", "once", "stages")


def mixture(plans: Plans, kind: str) -> Mixed:
    if kind == "stages":
        return Mixed(fb.Mixture(plans, STAGES, rows=83))
    return Mixed(fb.Mixture(plans, WEIGHTS, until=kind))  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def mixed(request: pytest.FixtureRequest, plans: Plans) -> Mixed:
    return mixture(plans, request.param)


def rows_of(batches: object) -> list[Rows]:
    """(dataset, id) of each row of each batch, without dummy rows."""
    return [
        list(zip(batch.source.tolist(), batch["id"].tolist(), strict=True)) if batch.weight else []
        for batch in batches  # type: ignore[attr-defined]
    ]


@pytest.mark.usefixtures("gatherers")
def test_every_epoch_is_the_planned_one_cold_and_warm(mixed: Mixed, cache: fb.DiskCache) -> None:
    planned = [mixed.planned(epoch) for epoch in range(4)]
    for given in (None, cache, cache):
        with mixed.loader(given, epochs=4) as loader:
            assert [rows_of(loader) for _ in range(4)] == planned
    with mixed.loader(cache) as loader:
        rows_of(loader)
        assert loader.counters["parquet_opens"] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, *(pytest.param(size, marks=pytest.mark.variation) for size in (2, 5, 16))])
def test_ranks_share_the_same_global_batches(wide_plans: Plans, cache: fb.DiskCache, kind: str, size: int) -> None:
    mixed = mixture(wide_plans, kind)
    for given in (None, cache, cache):
        parts = []
        for rank in range(size):
            with mixed.loader(given, world=fb.World(rank=rank, size=size), global_batch=21, epoch=1) as loader:
                parts.append(list(loader))
        for number, whole in enumerate(mixed.planned(1, 21)):
            group = [part[number] for part in parts]
            assert sorted(sum(rows_of(group), [])) == sorted(whole)
            assert [batch.weight for batch in group] == [batch.num_rows * size / len(whole) for batch in group]
            assert {batch.size for batch in group} == {len(whole)}


@pytest.mark.usefixtures("more_gatherers")
def test_resume_at_every_batch_also_elsewhere(mixed: Mixed, cache: fb.DiskCache) -> None:
    """Over three epochs: with stages, the weights change within the second and the third."""
    planned = [mixed.planned(epoch) for epoch in range(3)]
    with mixed.loader(cache) as loader:
        cursors = [loader.cursor(), *[loader.cursor() for _ in range(3) for _ in loader][:-1]]
    assert {cursor.epoch for cursor in cursors} == {0, 1, 2}
    for cursor in cursors:
        again = fb.Cursor.from_json(cursor.to_json())
        left = mixed.planned(cursor.epoch, start=cursor.position)
        assert left == planned[cursor.epoch][len(planned[cursor.epoch]) - len(left) :]
        with mixed.loader(cache) as loader:
            loader.seek(again)
            assert rows_of(loader) == left
        ranks = []
        for rank in range(3):
            with mixed.loader(cache, world=fb.World(rank=rank, size=3), global_batch=29) as loader:
                loader.seek(again)
                ranks.append(rows_of(loader))
        together = [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)]
        assert together == [sorted(rows) for rows in mixed.planned(cursor.epoch, 29, cursor.position)]


def test_one_data_set_of_weight_one_gives_the_batches_of_its_plan(plans: Plans, cache: fb.DiskCache) -> None:
    mix = fb.Mixture({"web": plans["web"]}, {"web": 1})
    with (
        fb.Loader(plans["web"], TRANSFORM, cache, global_batch=16, epochs=2) as own,
        fb.Loader(mix, TRANSFORM, cache, global_batch=16, epochs=2) as mixed,
    ):
        for _ in range(2):
            for left, right in zip(own, mixed, strict=True):
                assert torch.equal(left["x"], right["x"]) and left.position == right.position
                assert left.source is None and right.source.tolist() == [0] * right.num_rows


def test_source_is_int16_and_moves_with_the_batch(mixed: Mixed) -> None:
    with mixed.loader() as loader:
        batch = next(iter(loader))
    assert batch.source.dtype == torch.int16 and batch.source.shape == (batch.num_rows,)
    assert batch.to("meta").source.device.type == "meta"
    part = batch.take(np.array([3, 1]), weight=0.5)
    assert part.source.tolist() == batch.source[[3, 1]].tolist() and part["id"].tolist() == batch["id"][[3, 1]].tolist()
    with mixed.loader(as_numpy=True) as loader:
        assert next(iter(loader)).source.dtype == np.int16


def test_each_data_set_may_have_its_own_transform(plans: Plans) -> None:
    mix = fb.Mixture(plans, WEIGHTS)
    transforms = {
        name: fb.Transform(x=fb.Dense([column])) for name, column in (("web", "x0"), ("code", "x1"), ("books", "c0"))
    }
    with fb.Loader(mix, transforms, global_batch=32) as loader:
        copy = pickle.loads(pickle.dumps(loader))
        batch = next(iter(loader))
    with copy:
        assert torch.equal(next(iter(copy))["x"], batch["x"])
    own = {0: batch["x"][batch.source == 0], 1: batch["x"][batch.source == 1], 2: batch["x"][batch.source == 2]}
    assert bool((own[0] == own[0].round()).all()) and bool((own[0] < 10).all()), "c0 holds whole numbers below 10"
    assert bool((own[1].abs() < 10).all()) and bool((own[1] != own[1].round()).any())
    assert bool((own[2] == own[2].round()).all()) and bool((own[2] > 9).any()), "x0 is the id"


def test_different_arrays_are_refused_before_anything_starts(plans: Plans) -> None:
    mix = fb.Mixture(plans, WEIGHTS)
    one, two = fb.Transform(x=fb.Dense(["x0"])), fb.Transform(x=fb.Dense(["x0", "x1"]))
    data = fb.Data(plan=mix, transform={"web": one, "code": two, "books": one}, global_batch=8)
    with pytest.raises(InvalidOption, match=r"'books' the arrays .*'x', '<?f.*\(1,\).*'code' .*\(2,\).*same names"):
        data.validate_columns()
    with pytest.raises(InvalidOption, match="same names"):
        fb.Loader(mix, data.transform, global_batch=8)
    lists = fb.Transform(x=fb.Ragged("tags", padded=False)), fb.Transform(x=fb.Ragged("tags", max_len=2))
    with pytest.raises(InvalidOption, match=r"\(\('x without padding', 'int64', \(\)\),\), but .* same order"):
        fb.Loader(mix, {"web": lists[1], "code": lists[1], "books": lists[0]}, global_batch=8)
    with pytest.raises(MissingColumn, match="nothing"):
        fb.Loader(mix, fb.Transform(x=fb.Dense(["nothing"])), global_batch=8)
    with pytest.raises(InvalidOption, match=r"entries for \['web'\].*\['books', 'code', 'web'\]"):
        fb.Data(plan=mix, transform={"web": one}, global_batch=8)
    with pytest.raises(InvalidOption, match="entries for"):
        fb.Data(plan=plans["web"], transform={"web": one}, global_batch=8)


def test_different_arrays_of_functions_fail_with_both_schemas(plans: Plans) -> None:
    transforms = {
        "web": fb.Transform(fn=lambda batch: {"x": np.zeros(batch.num_rows, np.float32)}, version="1"),
        "code": fb.Transform(fn=lambda batch: {"x": np.zeros(batch.num_rows, np.float64)}, version="2"),
        "books": fb.Transform(fn=lambda batch: {"x": np.zeros(batch.num_rows, np.float32)}, version="1"),
    }
    with (
        fb.Loader(fb.Mixture(plans, WEIGHTS), transforms, global_batch=32) as loader,
        pytest.raises(TransformFailed, match="float64|f8"),
    ):
        list(loader)


def test_a_loader_goes_on_with_other_weights(plans: Plans, cache: fb.DiskCache) -> None:
    old = Mixed(fb.Mixture({name: plans[name] for name in ("web", "code")}, {"web": 1, "code": 1}, rows=100))
    with old.loader(cache) as loader:
        for number, _ in enumerate(loader):
            if number == 2:
                break
        cursor = loader.cursor()
    new = Mixed(fb.Mixture.continue_from(old.plan, cursor, plans, WEIGHTS))
    with new.loader(cache) as loader:
        loader.seek(cursor)
        assert rows_of(loader) == new.planned(0, start=cursor.position)
        assert loader.cursor().plan_id == new.plan.id
    with old.loader(cache) as loader, pytest.raises(CursorMismatch):
        loader.seek(fb.Cursor(plan_id=new.plan.id, epoch=0, position=0, global_batch=16))
