"""Index of windows: equal to brute force on random series, layouts, shapes and splits. Exact memory and lookups."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from tests.unit.data.windows.oracle import ExpectedWindow, line_of, random_frame, windows_of

from forebay.data.windows.index import WindowIndex, WindowShape, require_windows
from forebay.data.windows.line import BlockRuns, RunNames, StepLine
from forebay.data.windows.splits import TargetBounds, fraction_cuts, parts_of_cuts, parts_of_entities, step_cuts
from forebay.errors import BadSeries, InvalidOption

NUM_CASES, NUM_USUAL = 300, 100


def random_shape(rng: np.random.Generator) -> WindowShape:
    past = int(rng.integers(1, 13))
    ahead: tuple[int, ...] = ()
    if rng.random() < 0.8:
        most = int(rng.integers(1, 9))
        ahead = tuple(range(1, most + 1))
        if rng.random() < 0.3:
            ahead = tuple(sorted({int(step) for step in rng.integers(1, 9, 3)}))
    return WindowShape(
        past=past,
        ahead=ahead,
        gap=int(rng.integers(0, 4)) if ahead else 0,
        stride=int(rng.integers(1, 6)),
        min_steps=int(rng.integers(1, past + 1)) if rng.random() < 0.5 else None,
        shift=bool(rng.random() < 0.3),
    )


def random_parts(rng: np.random.Generator, line: StepLine) -> tuple[TargetBounds, ...]:
    match rng.integers(4):
        case 0:
            return (TargetBounds.all_of(line),)
        case 1:
            cuts = step_cuts(line, sorted({int(step) for step in rng.integers(1, 50, 2)}))
        case 2:
            cuts = fraction_cuts(line, (0.6, 0.2))
        case _:
            return parts_of_entities(line, rng.random(len(line.entities) - 1) < 0.4)
    return parts_of_cuts(line, cuts, gap=int(rng.integers(0, 6)), own_context=bool(rng.random() < 0.3))


def with_gaps_cut(frame: pd.DataFrame, line: StepLine, max_gap: int | None) -> StepLine:
    if max_gap is None:
        return line
    ordered = frame.sort_values(["entity", "time"], ignore_index=True)
    jumps = (ordered.entity.diff() == 0) & (ordered.time.diff() > max_gap)
    return line.cut(np.flatnonzero(jumps).astype(np.int64))


def all_windows(index: WindowIndex) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    block = np.repeat(np.arange(len(index.rows)), index.rows)
    row = np.concatenate([np.arange(count) for count in index.rows.tolist()] or [np.empty(0)]).astype(np.int64)
    return block, row


@pytest.mark.parametrize(
    "first_case",
    [pytest.param(case, marks=pytest.mark.variation if case >= NUM_USUAL else ()) for case in range(0, NUM_CASES, 50)],
)
def test_windows_equal_brute_force(first_case: int) -> None:
    for case in range(first_case, first_case + 50):
        rng = np.random.default_rng(case)
        line, frame = line_of(random_frame(rng))
        shape = random_shape(rng)
        max_gap = int(rng.integers(1, 9)) if rng.random() < 0.4 else None
        line = with_gaps_cut(frame, line, max_gap)
        for bounds in random_parts(rng, line):
            _check_part(frame, line, shape, bounds, max_gap, f"case {case}, {shape}")


def _check_part(
    frame: pd.DataFrame, line: StepLine, shape: WindowShape, bounds: TargetBounds, max_gap: int | None, case: str
) -> None:
    num_blocks = int(frame.block.max()) + 1
    index = WindowIndex(line, shape, bounds, num_blocks=num_blocks, data_id="d")
    groups = frame.sort_values(["entity", "time"]).groupby("entity")
    expected = {
        (window.entity, window.start): window
        for entity, steps in groups
        for window in windows_of(
            steps.time.to_numpy(),
            int(entity),
            shape,
            low=int(bounds.low[int(entity)]),
            high=int(bounds.high[int(entity)]),
            own=bounds.own_context,
            max_gap=max_gap,
        )
    }
    block, row = all_windows(index)
    windows = index.locate(block, row)
    found = [tuple(step) for step in index.entity_steps(windows).tolist()]
    assert sorted(found) == sorted(expected), case
    block_of = {(int(e), int(s)): int(b) for e, s, b in zip(frame.entity, frame.step, frame.block, strict=True)}
    needed: dict[int, set[int]] = {}
    for number, window in enumerate(expected[each] for each in found):
        begin = line.entities[window.entity]
        assert windows.real[number] == begin + window.past[0], case
        assert block_of[window.entity, window.past[0]] == block[number], case
        steps = range(window.past[0], max(window.past[-1], window.targets[-1]) + 1)
        needed.setdefault(int(block[number]), set()).update(block_of[window.entity, step] for step in steps)
    for each, blocks in needed.items():
        missed = blocks - {each} - set(index.neighbours(each))
        assert not missed, f"{case}: block {each} also needs {missed}"


@pytest.mark.parametrize(
    "shape", [WindowShape(past=6, ahead=(1, 2, 3), gap=1), WindowShape(past=4, stride=4, shift=True)]
)
@pytest.mark.parametrize("gap", [0, 5])
def test_no_target_of_a_part_is_in_the_next(shape: WindowShape, gap: int) -> None:
    line, _ = line_of(random_frame(np.random.default_rng(3)))
    parts = parts_of_cuts(line, step_cuts(line, (20, 35)), gap=gap)
    indices = [WindowIndex(line, shape, part, num_blocks=99, data_id="d") for part in parts]
    targets = []
    for index in indices:
        steps: dict[int, list[int]] = {}
        for shift in range(shape.most_shift + 1):
            windows = index.locate(*all_windows(index), shift)
            for entity, start in index.entity_steps(windows).tolist():
                first = start + shape.first_target
                steps.setdefault(entity, []).extend((first, start + shape.length - 1))
        targets.append(steps)
    compared = 0
    for left, right in pairwise(targets):
        for entity in left.keys() & right.keys():
            assert max(left[entity]) + gap < min(right[entity])
            compared += 1
    assert compared


def test_every_shift_keeps_each_window_within_its_series() -> None:
    line, _ = line_of(random_frame(np.random.default_rng(8)))
    shape = WindowShape(past=4, stride=4, shift=True)
    index = WindowIndex(line, shape, TargetBounds.all_of(line), num_blocks=99, data_id="d")
    ends = np.diff(line.entities)
    shifts = {index.shift_of(7, epoch) for epoch in range(64)}
    assert shifts == {0, 1, 2, 3}
    for shift in shifts:
        steps = index.entity_steps(index.locate(*all_windows(index), shift))
        assert np.all(steps[:, 1] >= 0) and np.all(steps[:, 1] + 4 <= ends[steps[:, 0]])


def test_memory_and_lookups_do_not_grow_with_windows() -> None:
    entities, steps = 20_000, 1_000
    runs = BlockRuns(
        block=np.repeat(np.arange(200), 100),
        first=np.tile(np.arange(100) * steps, 200),
        steps=np.full(entities, steps),
        entity=np.arange(entities),
        times=np.tile(np.array([[0, steps - 1]]), (entities, 1)),
    )
    line = StepLine.of(runs, entities, RunNames(run=str))
    index = WindowIndex(line, WindowShape(past=96, ahead=(1,)), TargetBounds.all_of(line), num_blocks=200, data_id="d")
    assert index.num_windows == entities * (steps - 96)
    assert index.nbytes <= 100 * entities
    windows = index.locate(np.array([199, 0, 7]), np.array([index.rows[199] - 1, 0, 904]))
    assert index.entity_steps(windows).tolist() == [[19_999, 903], [0, 0], [701, 0]]
    assert index.neighbours(7) == []


def test_the_id_covers_all_that_windows_depend_on() -> None:
    line, _ = line_of(random_frame(np.random.default_rng(3)))
    whole = TargetBounds.all_of(line)
    shapes = [
        WindowShape(past=8, ahead=(1, 2), min_steps=4),
        WindowShape(past=9, ahead=(1, 2), min_steps=4),
        WindowShape(past=8, ahead=(2,), min_steps=4),
        WindowShape(past=8, ahead=(1, 2)),
        WindowShape(past=8, ahead=(1, 2), gap=1, min_steps=4),
        WindowShape(past=8, ahead=(1, 2), stride=2, min_steps=4),
        WindowShape(past=8, ahead=(1, 2), stride=2, min_steps=4, shift=True),
    ]
    others = [
        WindowIndex(line, shapes[0], part, num_blocks=99, data_id="d").id
        for part in parts_of_cuts(line, step_cuts(line, (9,)))
    ]
    cut = line.cut(np.array([5]))
    ids = [WindowIndex(line, shape, whole, num_blocks=99, data_id="d").id for shape in shapes]
    ids += [*others, WindowIndex(line, shapes[0], whole, num_blocks=99, data_id="other").id]
    ids += [WindowIndex(cut, shapes[0], whole, num_blocks=99, data_id="d").id]
    assert len(set(ids)) == len(ids)
    assert WindowIndex(line, shapes[0], whole, num_blocks=99, data_id="d").id == ids[0]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([[0, 9], [9, 12]], "run 0 and run 1 both hold step 9 of entity 0"),
        ([[0, 9], [5, 12]], "hold steps 0 to 9 and 5 to 12 of entity 0, which overlap.*Sort the data"),
    ],
)
def test_runs_that_overlap_are_refused(times: list[list[int]], message: str) -> None:
    runs = BlockRuns(
        block=np.array([4, 2]),
        first=np.zeros(2, np.int64),
        steps=np.array([10, 4]),
        entity=np.zeros(2, np.int64),
        times=np.array(times),
    )
    with pytest.raises(BadSeries, match=message) as raised:
        StepLine.of(runs, 1, RunNames(run=lambda run: f"run {run}"))
    assert raised.value.blocks == (4, 2)


def test_a_split_without_a_window_says_what_is_needed() -> None:
    line, _ = line_of(random_frame(np.random.default_rng(3)))
    index = WindowIndex(line, WindowShape(past=90), TargetBounds.all_of(line), num_blocks=99, data_id="d")
    with pytest.raises(InvalidOption, match="test part holds no window: the longest series has .* needs 90"):
        require_windows(index, "The test part")


@pytest.mark.parametrize(
    "options",
    [
        {"past": 0},
        {"past": 3, "min_steps": 4},
        {"past": 3, "stride": 0},
        {"past": 3, "ahead": (2, 1)},
        {"past": 3, "gap": 1},
    ],
)
def test_shapes_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        WindowShape(**options)  # type: ignore[arg-type]


def test_cuts_that_cannot_work_are_refused() -> None:
    line, _ = line_of(random_frame(np.random.default_rng(3)))
    for wrong in ((), (0.6, 0.4), (0.5, -0.1)):
        with pytest.raises(InvalidOption):
            fraction_cuts(line, wrong)
    for steps in ((), (9, 5), (0,)):
        with pytest.raises(InvalidOption):
            step_cuts(line, steps)
    assert fraction_cuts(line, (0.6, 0.2))[0].tolist() == [
        int(np.diff(line.entities)[0] * share) for share in (0.6, 0.8)
    ]


def test_windows_of_the_published_split() -> None:
    """ETTh1: 12, 4 and 4 months of hours, look-back 336, horizon 96."""
    runs = BlockRuns(
        block=np.array([0]), first=np.array([0]), steps=np.array([14_400]), entity=np.array([0]), times=None
    )
    line = StepLine.of(runs, 1, RunNames(run=str))
    shape = WindowShape(past=336, ahead=tuple(range(1, 97)))
    parts = parts_of_cuts(line, step_cuts(line, (8640, 11520)))
    counts = [WindowIndex(line, shape, part, num_blocks=1, data_id="d").num_windows for part in parts]
    assert counts == [8209, 2785, 2785]


def test_expected_windows_of_a_small_case() -> None:
    """The oracle itself, by hand: 6 steps, 2 back, 1 ahead, the last two steps held out."""
    shape = WindowShape(past=2, ahead=(1,))
    found = list(windows_of(np.arange(6), 0, shape, low=4, high=6, own=False, max_gap=None))
    assert [window.targets for window in found] == [(4,), (5,)]
    assert found[0] == ExpectedWindow(entity=0, start=2, past=(2, 3), targets=(4,))
