"""Mixtures of windows: each dataset keeps its windows, scale and shift, and every law of the order holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.data.windows.conftest import random_series, write_series
from tests.unit.data.windows.test_laws import rows_of

import forebay as fb
from forebay.errors import CursorMismatch, InvalidOption

LAYOUTS = {"days": "day", "meters": "entity", "lists": "lists"}
STAGES = [(0, {"days": 1.0, "meters": 2.0}), (150, {"days": 0.2, "lists": 0.8}), (333, {"days": 1, "meters": 1})]
Parts = dict[str, Any]


def parts_of(folder: Path, **options: Any) -> Parts:
    """A part of each layout, with a scale of its own."""
    parts = {}
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        rng = np.random.default_rng(number)
        manifest = write_series(folder / name, random_series(rng), layout, rng)
        given: dict[str, Any] = {
            "past": fb.History(["load", "temp"], steps=6),
            "future": fb.Horizon(["load"], steps=2),
            "static": fb.Categorical(["region"]),
            "stride": 2,
            "min_steps": 4,
            "observed": True,
            "scale": "standard",
        }
        series = fb.Sequences(manifest, entity="meter", time="ts", **(given | options))
        parts[name] = series.split(fractions=(0.8,))[0]
    return parts


def text_parts(folder: Path) -> Parts:
    """Windows without a future, moved by another shift in each epoch."""
    return parts_of(folder, future=None, static=None, shift=True, stride=5, observed=False)


def plans_of(parts: Parts) -> dict[str, fb.Plan]:
    return {
        name: fb.build_plan(part, seed=number, lanes=4 + number, shuffle_rows=8)
        for number, (name, part) in enumerate(parts.items())
    }


def loader_of(parts: Parts, mix: fb.Mixture, cache: Any = None, **options: Any) -> fb.Loader:
    transforms = {name: part.transform for name, part in parts.items()}
    return fb.Loader(mix, transforms, cache, **({"global_batch": 16, "as_numpy": True} | options))


def facts_of(batches: Any) -> list[tuple[int, tuple[bytes, ...]]]:
    """Dataset of each window, and its bits in all arrays."""
    found = []
    for batch in batches:
        arrays = [batch.windows, *(batch[name] for name in sorted(batch))]
        found += [
            (int(batch.source[row]), tuple(each[row].tobytes() for each in arrays)) for row in range(batch.num_rows)
        ]
    return found


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        *(("stages", parts_of), ("once", text_parts)),
        *(pytest.param(*each, marks=pytest.mark.variation) for each in (("stages", text_parts), ("once", parts_of))),
    ],
)
def test_each_data_set_gives_the_windows_of_its_own_loader(make: Any, rule: str, tmp_path: Path) -> None:
    """Also where a batch has windows of two own epochs, whose shifts differ."""
    parts = make(tmp_path)
    plans = plans_of(parts)
    mix = fb.Mixture(plans, STAGES, rows=150) if rule == "stages" else fb.Mixture(plans, until="once")
    with loader_of(parts, mix) as loader:
        batches = [batch for _ in range(4) for batch in loader]
    mixed = facts_of(batches)
    for source, name in enumerate(mix.names):
        rows = [bits for number, bits in mixed if number == source]
        with fb.Loader(plans[name], parts[name].transform, global_batch=16, as_numpy=True) as own:
            alone: list[tuple[bytes, ...]] = []
            while len(alone) < len(rows):
                for batch in own:
                    arrays = [batch.windows, *(batch[key] for key in sorted(batch))]
                    alone += [tuple(each[row].tobytes() for each in arrays) for row in range(batch.num_rows)]
        assert len(rows) > plans[name].num_rows, "more than one own epoch"
        assert rows == alone[: len(rows)]


@pytest.mark.parametrize("size", [2, 4])
def test_every_world_sees_the_same_global_batches_cold_and_warm(size: int, tmp_path: Path, cache: fb.DiskCache) -> None:
    parts = text_parts(tmp_path)
    mix = fb.Mixture(plans_of(parts), STAGES, rows=150)
    with loader_of(parts, mix, epoch=1) as loader:
        alone = rows_of(loader)
    for _ in range(2):
        ranks = []
        for rank in range(size):
            with loader_of(parts, mix, cache, epoch=1, world=fb.World(rank=rank, size=size)) as loader:
                ranks.append(rows_of(loader))
        assert [sorted(sum(group, [])) for group in zip(*ranks, strict=True)] == [sorted(batch) for batch in alone]


def test_resume_at_every_batch_in_another_world(tmp_path: Path, cache: fb.DiskCache) -> None:
    parts = text_parts(tmp_path)
    mix = fb.Mixture(plans_of(parts), STAGES, rows=150)
    with loader_of(parts, mix, cache, epochs=3) as loader:
        steps = [(loader.cursor(), batch) for _ in range(3) for batch in loader]
    # The cursor is already behind the batch that is handed out.
    batches = [sorted(rows_of([batch])[0]) for _, batch in steps]
    for done, (cursor, batch) in enumerate(steps[:-1], start=1):
        ranks = []
        for rank in range(3):
            with loader_of(parts, mix, cache, world=fb.World(rank=rank, size=3)) as loader:
                loader.seek(cursor)
                ranks.append(rows_of(loader))
        left = [sorted(sum(group, [])) for group in zip(*ranks, strict=True)]
        per_epoch = len(batches) // 3
        assert left == batches[done : done + (-done % per_epoch or per_epoch)], batch


def test_statistics_of_all_data_sets_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    transforms = {name: part.transform for name, part in parts.items()}
    data = fb.Data(plan=fb.Mixture(plans_of(parts)), transform=transforms, global_batch=16)
    data.validate_columns()
    data.validate_statistics(data.statistics, owner="the checkpoint of step 3")
    assert {"days/load", "days/temp", "meters/load", "lists/temp"} < set(data.statistics["columns"])
    assert data.statistics["scale"] == dict.fromkeys(LAYOUTS, "standard")
    swapped = fb.Data(plan=data.plan, transform=transforms | {"days": transforms["meters"]}, global_batch=16)
    with pytest.raises(CursorMismatch, match="days/load, days/temp changed"):
        swapped.validate_statistics(data.statistics, owner="the checkpoint of step 3")
    text = fb.Sequences(
        parts["days"].manifest, entity="meter", time="ts", past=fb.History(["load"], steps=4), fill=None
    )
    mix = fb.Mixture({"a": fb.build_plan(text)})
    assert fb.Data(plan=mix, transform={"a": text.transform}, global_batch=16).statistics == {}


def test_windows_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    manifest = parts["days"].manifest
    rows = fb.build_plan(manifest)
    plans: Any = {"days": fb.build_plan(parts["days"]), "rows": rows}
    with pytest.raises(InvalidOption, match=r"windows of series \(days\) and rows \(rows\).*or none"):
        fb.Mixture(plans)
    with pytest.raises(InvalidOption, match="samples rows"):
        fb.Sampled(plans["days"], balance="region")
    longer = fb.Sequences(manifest, entity="meter", time="ts", past=fb.History(["load", "temp"], steps=7))
    mix = fb.Mixture({"days": plans["days"], "longer": fb.build_plan(longer)})
    transforms = {"days": parts["days"].transform, "longer": longer.transform}
    with pytest.raises(
        InvalidOption, match=r"'days' the arrays .*\('past', 'float32', \(6, 2\)\).*'longer'.*same names"
    ):
        fb.Data(plan=mix, transform=transforms, global_batch=16).validate_columns()
    with pytest.raises(InvalidOption, match="the plan orders windows"):
        fb.Data(
            plan=mix,
            transform={"days": transforms["days"], "longer": fb.Transform(x=fb.Dense(["load"]))},
            global_batch=8,
        )
