"""Loops of windows: each window equals a slice of its series, over any cut into runs, scaled, filled and padded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forebay.data.kernels.calls import are_present, fill_windows, gather_scaled, gather_steps

Floats = NDArray[np.float32]


class CutSeries:
    """One line of steps, cut into runs that lie in arrays of their own."""

    def __init__(self, rng: np.random.Generator, *, nulls: float = 0.0, width: int = 3, offset: float = 0.0) -> None:
        self.steps = int(rng.integers(20, 60))
        self.exact = rng.normal(size=(self.steps, width)) + offset
        self.exact[rng.random(self.exact.shape) < nulls] = np.nan
        self.values = self.exact.astype(np.float32)
        self.rests = np.nan_to_num(self.exact - self.values).astype(np.float32)
        cuts = np.unique(np.concatenate([[0, self.steps], rng.integers(1, self.steps, 6)]))
        self.runs = [[each[a:b].copy() for a, b in pairwise(cuts)] for each in (self.values, self.rests)]
        row_bytes = width * 4
        addresses = [
            [run.ctypes.data - a * row_bytes for run, a in zip(runs, cuts, strict=False)] for runs in self.runs
        ]
        self.line = np.array([cuts, *([*each, 0] for each in addresses)], dtype=np.int64)
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
    scaling = np.array([[0.5, -1.0], [2.0, 0.25], [9.0, 8.0], [fill, fill], [0, 0]], np.float32)
    for skip, steps in ((0, 8), (9, 4)):
        out, observed = np.empty((40, steps, 2), np.float32), np.empty((40, steps, 2), np.uint8)
        view = np.array([skip, steps, 3, steps * 2, 1, 0, *columns])
        gather_scaled(out.reshape(-1), view, scaling, series.line, windows)
        fill_windows(out.reshape(-1), observed.reshape(-1), view, scaling, series.line, windows)
        for i, (start, real, _) in enumerate(windows.T.tolist()):
            for k, column in enumerate(columns):
                mean = scaling[2, k] / scaling[1, k] + scaling[0, k]
                values, seen = _filled(series.values[:, column], start, real, (skip, steps), fill, mean)
                scaled = (values - scaling[0, k]) * scaling[1, k]
                scaled[: max(real - start - skip, 0)] = 0
                np.testing.assert_array_equal(out[i, :, k], scaled)
                assert observed[i, :, k].tolist() == seen.tolist()


def _filled(
    values: NDArray[Any], start: int, real: int, part: tuple[int, int], fill: int, mean: Any
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values of a part of a window, by the definition of the fill."""
    places = range(start + part[0], start + sum(part))
    found = np.array([values[place] if place >= real else 0 for place in places], values.dtype)
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
    neutral = np.array([[0] * 3, [1] * 3, [0] * 3, [0] * 3, [0] * 3], np.float32)
    view = np.array([0, 8, 3, 24, 1, 0, 0, 1, 2])
    gather_scaled(scaled.reshape(-1), view, neutral, series.line, windows)
    np.testing.assert_array_equal(raw, scaled)


@pytest.mark.parametrize("columns", [[0, 1, 2], [2, 0]], ids=["all", "some"])
@pytest.mark.parametrize("offset", [0.0, 1e9, -3e12])
def test_rests_keep_what_float32_loses(offset: float, columns: list[int]) -> None:
    rng = np.random.default_rng(5)
    series = CutSeries(rng, nulls=0.3, offset=offset)
    windows = series.windows(rng, 8)
    shift = np.full(len(columns), offset + 0.3)
    short = shift.astype(np.float32)
    zeros, factor = np.zeros(len(columns)), np.full(len(columns), 2.0)
    scaling = np.stack([short, factor, zeros, zeros + 1, shift - short]).astype(np.float32)
    out = np.empty((40, 8, len(columns)), np.float32)
    view = np.array([0, 8, 3, 8 * len(columns), 1, 2, *columns])
    gather_scaled(out.reshape(-1), view, scaling, series.line, windows)
    fill_windows(out.reshape(-1), np.empty(0, np.uint8), view, scaling, series.line, windows)
    for i, (start, real, _) in enumerate(windows.T.tolist()):
        for k, column in enumerate(columns):
            exact, _ = _filled(series.exact[:, column], start, real, (0, 8), 1, np.float64(offset + 0.3))
            expected = (exact - shift[k]) * 2
            expected[: max(real - start, 0)] = 0
            np.testing.assert_allclose(out[i, :, k], expected, rtol=1e-6, atol=1e-6 + abs(offset) * 2**-48)


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
