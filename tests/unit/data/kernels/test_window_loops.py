"""Loops of windows: each window equals a slice of its series, over any cut into runs, scaled, filled and padded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from forebay.data.kernels.calls import are_present, fill_windows, gather_scaled, gather_steps

Floats = NDArray[np.float32]


class CutSeries:
    """One line of steps, cut into runs that lie in arrays of their own."""

    def __init__(self, rng: np.random.Generator, *, nulls: float = 0.0, width: int = 3) -> None:
        self.steps = int(rng.integers(20, 60))
        self.values = rng.normal(size=(self.steps, width)).astype(np.float32)
        self.values[rng.random(self.values.shape) < nulls] = np.nan
        cuts = np.unique(np.concatenate([[0, self.steps], rng.integers(1, self.steps, 6)]))
        self.runs = [self.values[a:b].copy() for a, b in pairwise(cuts)]
        row_bytes = width * 4
        address = [run.ctypes.data - a * row_bytes for run, a in zip(self.runs, cuts, strict=False)]
        self.line = np.array([cuts, [*address, 0]], dtype=np.int64)
        self.width = width

    def windows(self, rng: np.random.Generator, steps: int, count: int = 40) -> NDArray[np.int64]:
        """Random windows of `steps`, some with padding. The given run may lie before the first real step."""
        start = rng.integers(-5, self.steps - steps + 1, count)
        real = np.maximum(start, rng.integers(0, 4, count))
        run = np.searchsorted(self.line[0], np.maximum(start, 0), side="right") - 1
        return np.ascontiguousarray(np.stack([start, real, run]), dtype=np.int64)

    def expected(self, start: int, real: int, skip: int, steps: int) -> Floats:
        places = np.arange(start + skip, start + skip + steps)
        return np.where((places >= real)[:, None], self.values[np.maximum(places, 0)], np.float32(0))


@pytest.mark.parametrize("seed", range(10))
def test_raw_windows_are_slices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    series = CutSeries(rng)
    windows = series.windows(rng, 13)
    for skip, steps in ((0, 8), (9, 4), (12, 1)):
        out = np.full((40, steps + 1, 3), 7, np.float32)
        view = np.array([skip, steps, 12, (steps + 1) * 12, 1])
        gather_steps(out.ctypes.data, view, series.line, windows)
        for i, (start, real, _) in enumerate(windows.T.tolist()):
            assert out[i, :steps].tobytes() == series.expected(start, real, skip, steps).tobytes()
        assert np.all(out[:, steps] == 7)


@pytest.mark.parametrize("fill", [0, 1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_scaled_windows_are_filled_from_their_own_steps(seed: int, fill: int) -> None:
    rng = np.random.default_rng(seed)
    series = CutSeries(rng, nulls=0.5)
    windows = series.windows(rng, 13)
    columns = [2, 0]
    scaling = np.array([[0.5, -1.0], [2.0, 0.25], [9.0, 8.0], [fill, fill]], np.float32)
    for skip, steps in ((0, 8), (9, 4)):
        out, observed = np.empty((40, steps, 2), np.float32), np.empty((40, steps, 2), np.uint8)
        view = np.array([skip, steps, 3, steps * 2, 1, *columns])
        gather_scaled(out.reshape(-1), view, scaling, series.line, windows)
        fill_windows(out.reshape(-1), observed.reshape(-1), view, scaling, series.line, windows)
        for i, (start, real, _) in enumerate(windows.T.tolist()):
            for k, column in enumerate(columns):
                values, seen = _filled(series.values[:, column], start, real, (skip, steps), fill, scaling[2, k])
                scaled = (values - scaling[0, k]) * scaling[1, k]
                scaled[: max(real - start - skip, 0)] = 0
                np.testing.assert_array_equal(out[i, :, k], scaled)
                assert observed[i, :, k].tolist() == seen.tolist()


def _filled(
    values: Floats, start: int, real: int, part: tuple[int, int], fill: int, mean: np.float32
) -> tuple[Floats, NDArray[np.bool_]]:
    """Values of a part of a window, by the definition of the fill."""
    places = range(start + part[0], start + sum(part))
    found = np.array([values[place] if place >= real else np.float32(0) for place in places], np.float32)
    seen = np.array([place >= real and not np.isnan(values[place]) for place in places])
    for at, place in enumerate(places):
        if not fill or seen[at] or place < real:
            continue
        before = [values[back] for back in range(place, real - 1, -1) if not np.isnan(values[back])]
        after = [values[later] for later in range(place, places.stop) if not np.isnan(values[later])]
        found[at] = before[0] if before else (after[0] if fill == 2 and after else mean)
    return found, seen


def test_without_scale_and_fill_the_bits_stay() -> None:
    rng = np.random.default_rng(1)
    series = CutSeries(rng, nulls=0.3)
    windows = series.windows(rng, 8)
    raw, scaled = np.empty((40, 8, 3), np.float32), np.empty((40, 8, 3), np.float32)
    gather_steps(raw.ctypes.data, np.array([0, 8, 12, 96, 1]), series.line, windows)
    neutral = np.array([[0] * 3, [1] * 3, [0] * 3, [0] * 3], np.float32)
    view = np.array([0, 8, 3, 24, 1, 0, 1, 2])
    gather_scaled(scaled.reshape(-1), view, neutral, series.line, windows)
    np.testing.assert_array_equal(raw, scaled)


@pytest.mark.parametrize("seed", range(3))
def test_windows_are_present_if_all_runs_that_they_read_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    series = CutSeries(rng)
    starts, answers = series.line[0], set()
    for window in series.windows(rng, 8).T:
        last = int(np.searchsorted(starts, window[0] + 7, side="right")) - 1
        for absent in range(len(starts) - 1):
            is_present = np.arange(len(starts) - 1) != absent
            found = are_present(np.ascontiguousarray(window[:, None]), 8, series.line, is_present)
            assert found == (not window[2] <= absent <= last)
            answers.add(found)
    assert answers == {False, True}
