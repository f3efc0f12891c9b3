from __future__ import annotations

import datetime
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.data.preparation.fits import FitPart, Fits, Moments, Quantiles, Vocabulary, exact_quantiles
from forebay.errors import InvalidOption, MissingColumn, WrongType

INF = float("inf")


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0, -0.0, 5e-324, -5e-324],
        [-3.5, 2.0, 2.0, 2.0, 1e300, -1e300],
        np.random.default_rng(0).normal(1e6, 1e-3, 5000).tolist(),
        np.random.default_rng(1).integers(-5, 5, 999).astype(float).tolist(),
    ],
)
def test_quantiles_are_those_of_the_sorted_column(values: list[float]) -> None:
    probabilities = (0.0, 0.01, 0.25, 0.5, 0.99, 1.0)
    arrays = np.array_split(np.array(values), 3)
    found = exact_quantiles(lambda: iter(arrays), probabilities)
    expected = np.quantile(values, probabilities, method="inverted_cdf")
    assert list(found.values()) == expected.tolist()


def test_quantiles_of_nothing_are_nan() -> None:
    assert np.isnan(exact_quantiles(lambda: iter([np.empty(0)]), (0.5,))[0.5])


def parts_of(fits: Fits, tables: list[pa.Table]) -> list[FitPart]:
    return [fits.part([table]) for table in tables]


def test_moments_do_not_depend_on_the_order_of_parts_and_are_precise() -> None:
    values = np.random.default_rng(2).lognormal(8, 3, 6000)
    fits = Fits(fits=(Moments("x"),))
    parts = parts_of(fits, [pa.table({"x": part}) for part in np.array_split(values, 5)])
    found = [fits.statistics(order, None)["x"] for order in itertools.permutations(parts)]  # type: ignore[arg-type]
    (column,) = {(each.count, each.mean, each.std, each.min, each.max) for each in found}
    exact = values.astype(np.longdouble)
    assert column[0] == 6000
    assert abs(column[1] / float(exact.mean()) - 1) < 1e-12
    assert abs(column[2] / float(exact.std()) - 1) < 1e-12
    assert column[3:] == (values.min(), values.max())


def test_a_constant_column_has_no_deviation() -> None:
    fits = Fits(fits=(Moments("x"),))
    parts = parts_of(fits, [pa.table({"x": np.full(rows, 0.1)}) for rows in (700, 801)])
    found = fits.statistics(parts, None)["x"]  # type: ignore[arg-type]
    assert (found.mean, found.std) == (0.1, 0)


def test_nulls_and_values_that_are_not_finite_are_counted() -> None:
    fits = Fits(fits=(Moments(["x", "empty", "flag"]),))
    flags = [True, False, None, None, True]
    table = pa.table({"x": [1.0, None, float("nan"), INF, 3.0], "empty": pa.nulls(5, pa.int32()), "flag": flags})
    found = fits.statistics(parts_of(fits, [table]), None)  # type: ignore[arg-type]
    assert (found["x"].count, found["x"].nulls, found["x"].mean, found["x"].std) == (2, 3, 2.0, 1.0)
    assert (found["empty"].count, found["empty"].nulls) == (0, 5)
    assert np.isnan(found["empty"].mean)
    assert found["flag"].mean == 2 / 3


def test_vocabularies_merge_and_leave_out_what_is_not_fitted_on() -> None:
    fits = Fits(fits=(Vocabulary("city", min_count=2), Vocabulary("day", max_size=1)), on=pc.field("split") == "train")
    day = datetime.date(2026, 1, 2)
    tables = [
        pa.table({"city": ["a", "b", "b", None], "day": [day] * 4, "split": ["train", "train", "test", "train"]}),
        pa.table({"city": ["b", "a", "c", "b"], "day": [day] * 4, "split": ["train", "train", "test", "train"]}),
    ]
    parts = parts_of(fits, tables)
    assert fits.vocabularies(parts) == fits.vocabularies(parts[::-1]) == {"city": ("b", "a"), "day": (20455,)}


def test_a_dataset_whose_quantiles_had_no_moments_is_prepared_again() -> None:
    moments, quantiles = Moments("price"), Quantiles("price")
    assert Fits(fits=(moments,)).identity == repr((moments,))
    assert Fits(fits=(moments, quantiles)).identity != repr((moments, quantiles))


def test_fits_that_cannot_work() -> None:
    with pytest.raises(InvalidOption, match="keeps no value"):
        Vocabulary("a", min_count=0)
    with pytest.raises(InvalidOption, match="probabilities are from 0 to 1"):
        Quantiles("a", (99,))
    with pytest.raises(InvalidOption, match="probabilities are from 0 to 1"):
        Quantiles("a", 0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="not a pyarrow expression"):
        Fits(on="split == 'train'")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"give fb\.Vocabulary"):
        Fits(fits=("city",))  # type: ignore[arg-type]
    with pytest.raises(MissingColumn, match="Did you mean 'city'"):
        Fits(fits=(Vocabulary("citty"),)).check_schema(pa.schema({"city": pa.string()}))
    with pytest.raises(WrongType):
        Fits(fits=(Moments("city"),)).check_schema(pa.schema({"city": pa.string()}))
    for expression, found in ((pc.field("splt") == "train", "splt"), (pc.field("city"), "string")):
        with pytest.raises(InvalidOption, match=f"fit_on=.*{found}.*columns \\['city'\\]"):
            Fits(on=expression).check_schema(pa.schema({"city": pa.string()}))
