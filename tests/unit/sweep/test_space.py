"""Domains of a sweep: plain ranges and lists, domains of Ray Tune, and refused values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ray import tune

from forebay.errors import BadJob, InvalidOption
from forebay.sweep.space import (
    Choice,
    Grid,
    TuneDomain,
    Uniform,
    WholeNumbers,
    depends_on_others,
    example_value,
    is_tune_domain,
    parse_domain,
    validate_domain,
)


@pytest.mark.parametrize(
    ("given", "domain"),
    [
        ((0.1, 2), Uniform(low=0.1, high=2.0)),
        ((1, 3), WholeNumbers(low=1, high=3)),
        ((np.float32(0.5), np.int64(2)), Uniform(low=0.5, high=2.0)),
        ((np.int64(1), np.int64(3)), WholeNumbers(low=1, high=3)),
        ((0, 2**63 - 1), WholeNumbers(low=0, high=2**63 - 1)),
        (range(3, 6), WholeNumbers(low=3, high=5)),
        (range(0, 9, 4), Choice(values=(0, 4, 8))),
        (range(3, 4), Choice(values=(3,))),
        (["Is 'http://a/b' spam? Assign it."], Choice(values=("Is 'http://a/b' spam? Assign it.",))),
        ([(1, 2), None], Choice(values=((1, 2), None))),
        ({"grid_search": [1, 2]}, Grid(values=(1, 2))),
    ],
)
def test_plain_values_say_what_to_draw_from(given: Any, domain: Any) -> None:
    assert parse_domain("x", given) == domain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2, 1), "low must be less than high"),
        ((1.0, 1.0), "low must be less than high"),
        ((0.1, float("inf")), "both finite"),
        ((1, 2, 3), "not a range"),
        ((True, 3), "not a range"),
        ((np.bool_(True), 3), "not a range"),
        ((0, 2**63), "draws 64-bit numbers"),
        (range(2**64), "draws 64-bit numbers"),
        ((-1e308, 1e308), "wider than a float"),
        (("a", "b"), "not a range"),
        ([], "has no values"),
        (range(0), "has no values"),
        ({"grid_search": []}, "has no values"),
        (
            ["s3://AKIA:sesame@bucket/a", "s3://bucket/b"],
            "holds a URI with credentials, .* set them in the environment",
        ),
        (tune.choice([{"mix": ["abfs://c@a/x?account_key=sesame"]}]), "holds a URI with credentials"),
        ({"grid_search": 3}, "has no values"),
        ({"a": 1}, "put a single value into fixed"),
        (0.1, "put a single value into fixed"),
        ("adam", "put a single value into fixed"),
        (tune.uniform(2, 1), "is empty"),
        (tune.randint(3, 3), "is empty"),
        (tune.choice([]), "has no values"),
    ],
)
def test_what_holds_nothing_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse_domain("x", given)


def test_logarithm_of_zero_is_refused() -> None:
    domain = tune.loguniform(1e-3, 1.0)
    domain.lower = 0.0
    with pytest.raises(InvalidOption, match="above 0"):
        parse_domain("x", domain)


def test_domains_of_tune_pass_through() -> None:
    given = tune.loguniform(1e-4, 1e-1)
    assert is_tune_domain(given)
    assert parse_domain("lr", given) == TuneDomain(domain=given)
    assert 1e-4 <= example_value(TuneDomain(domain=given)) <= 1e-1
    assert not is_tune_domain(0.1)


def test_value_that_depends_on_others_is_known() -> None:
    assert depends_on_others(parse_domain("x", tune.sample_from(lambda spec: spec.config.y)))
    assert not depends_on_others(parse_domain("x", tune.uniform(0, 1)))


@pytest.mark.parametrize(
    ("given", "annotation"),
    [
        ((0.5, 2.5), int),
        (tune.uniform(1, 4), int),
        (["adam", 3], int),
        ([1, "x"], float),
        (tune.choice(["a", "b"]), int),
        (tune.qloguniform(0.1, 0.4, 0.05), bool),
    ],
)
def test_values_of_another_type_are_found(given: Any, annotation: Any) -> None:
    with pytest.raises(BadJob, match=r"space\['x'\] holds .*, but x is a"):
        validate_domain("x", parse_domain("x", given), annotation)


@pytest.mark.parametrize(
    ("given", "annotation"),
    [
        ((1, 4), int),
        ((1, 4), float),
        ((0.5, 2.5), float | None),
        (["64,32", (8,)], tuple[int, ...]),
        (tune.randint(1, 9), int),
        (tune.choice([True, False]), bool),
    ],
)
def test_values_that_fit_pass(given: Any, annotation: Any) -> None:
    validate_domain("x", parse_domain("x", given), annotation)
