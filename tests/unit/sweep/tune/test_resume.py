"""A sweep resumes from its own record: no trial twice, none lost, and Tune's pickles are not read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.impl.placeholder import create_resolvers_map, inject_placeholders
from ray.tune.search import BasicVariantGenerator, Searcher, create_searcher
from tests.unit.sweep.made import record, trial

from forebay.errors import InvalidOption, SweepFailed
from forebay.sweep.record.record import Record, TrialRecord, inexact_names
from forebay.sweep.space import Choice, Domain, Grid, Uniform
from forebay.sweep.tune.resume import ResumedSearch, check_resumable, restored_config
from forebay.sweep.tune.search import tune_domain

DOMAINS: dict[str, Domain] = {"lr": Uniform(low=0.0, high=1.0), "key": Grid(values=("a", "b"))}


class ToldSearcher(Searcher):  # type: ignore[misc]
    """Searcher that keeps the results it receives, and draws 1, 2, 3, ..."""

    def __init__(self) -> None:
        super().__init__(metric="auc", mode="max")
        self.points: list[tuple[dict[str, Any], float | None]] = []
        self.ended: list[str] = []
        self._next = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self._next += 1
        return {"lr": float(self._next)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.ended.append(trial_id)

    def add_evaluated_point(self, parameters: Any, value: Any, error: bool = False, **_: Any) -> None:
        assert error == (value is None)
        self.points.append((parameters, value))


def search(searcher: Any, known: Record, num_samples: int, most: int | None = None) -> ResumedSearch:
    config = {name: tune_domain(domain) for name, domain in DOMAINS.items()}
    if isinstance(searcher, Searcher):
        del config["key"]
    made = ResumedSearch(searcher, known, DOMAINS, "/sweeps/ctr", most)
    made.add_configurations([Experiment("ctr", run=lambda _: None, config=config, num_samples=num_samples)])
    return made


def all_of(made: ResumedSearch) -> list[tuple[str, dict[str, Any]]]:
    found = []
    while not made.is_finished():
        if (drawn := made.next_trial()) is not None:
            found.append((drawn.trial_id, drawn.config))
    return found


def drawn_by_seed(num_samples: int) -> list[tuple[str, dict[str, Any]]]:
    return all_of(search(BasicVariantGenerator(random_state=7), record(), num_samples))


@pytest.mark.parametrize("known", [(), (0,), (0, 1, 2), (1, 3), (3, 0), (0, 1, 2, 3, 4, 5)])
def test_random_trials_are_those_of_the_first_start_each_once(known: tuple[int, ...]) -> None:
    first = drawn_by_seed(3)
    assert len(first) == 6 and [config["key"] for _, config in first] == ["a", "b"] * 3
    states = ["finished", "running", "pending", "stopped", "failed", "paused"]
    kept = [trial(first[n][0], 0.5, state=states[n], **first[n][1]) for n in known]  # type: ignore[arg-type]
    found = all_of(search(BasicVariantGenerator(random_state=7), record(*kept), 3))
    resumed = [each.id for each in kept if each.state not in ("finished", "stopped")]
    assert [name for name, _ in found[: len(resumed)]] == resumed
    rest = [n for n in range(6) if n not in known]
    assert [config for _, config in found[len(resumed) :]] == [first[n][1] for n in rest]
    assert all(config == dict(first)[name] for name, config in found[: len(resumed)])


def test_what_the_end_of_the_sweep_stopped_goes_on() -> None:
    cut, over = (trial(f"1a2b_0000{n}", 0.5, state="stopped", lr=0.1, key="a") for n in range(2))
    kept = record(TrialRecord(**{**_facts(cut), "is_cut": True}), over)
    found = all_of(search(BasicVariantGenerator(random_state=7), kept, 1))
    assert [name for name, _ in found] == [cut.id]


def _facts(made: TrialRecord) -> dict[str, Any]:
    return {name: getattr(made, name) for name in TrialRecord.__dataclass_fields__}


def test_a_searcher_is_told_of_ended_trials_and_of_resumed_ones_when_they_end() -> None:
    searcher = ToldSearcher()
    kept = record(
        trial("a", 0.5, 0.7, state="finished", lr=0.1),
        trial("b", None, state="stopped", lr=0.2),
        trial("c", 0.6, state="failed", lr=0.3),
        trial("d", 0.4, state="paused", lr=0.4),
    )
    made = search(searcher, kept, num_samples=1)
    assert searcher.points == [({"lr": 0.1}, 0.7), ({"lr": 0.2}, None), ({"lr": 0.3}, 0.6)]
    found = all_of(made)
    assert [config["lr"] for _, config in found] == [0.4, 1.0]
    made.on_trial_result("d", {"auc": 0.9})
    made.on_trial_complete("d", {"auc": 0.9})
    made.on_trial_complete(found[1][0], {"auc": 0.8})
    assert searcher.points[3:] == [({"lr": 0.4}, 0.9)] and searcher.ended == [found[1][0]]


@pytest.mark.parametrize("searcher", [BasicVariantGenerator(random_state=7), ToldSearcher()])
def test_no_more_than_the_limit_is_under_way(searcher: Any) -> None:
    kept = record(*(trial(f"1a2b_0000{n}", 0.5, state="pending", lr=0.1, key="a") for n in range(3)))
    made = search(searcher, kept, 2, most=2)
    live = [made.next_trial(), made.next_trial()]
    assert None not in live and made.next_trial() is None
    made.on_trial_complete("1a2b_00000", {"auc": 0.5})
    assert made.next_trial().trial_id == "1a2b_00002"  # type: ignore[union-attr]


def test_values_that_json_does_not_hold_are_found_in_the_space() -> None:
    domains: dict[str, Domain] = {
        "layers": Choice(values=((64, 32), (8,))),
        "other": Grid(values=((1,), [1])),
        "lr": Uniform(low=0.0, high=1.0),
    }
    config: dict[str, Any] = {"layers": (64, 32), "lr": 0.25}
    kept = record(TrialRecord(id="x", run="r", config=config, inexact=inexact_names(config)))
    read = Record.from_json(kept.to_json()).trials["x"]
    assert read.config["layers"] == [64, 32] and restored_config(read, domains, "p") == config
    for name, value in (("other", (1,)), ("layers", (9, 9)), ("gone", object())):
        made = TrialRecord(id="x", run="r", config={name: value}, inexact=inexact_names({name: value}))
        read = Record.from_json(record(made).to_json()).trials["x"]
        with pytest.raises(SweepFailed, match=f"trial x has {name}="):
            restored_config(read, domains, "p")


@dataclass(frozen=True)
class Sizes:
    width: int


def relu(value: float) -> float:
    return max(value, 0.0)


@pytest.mark.parametrize(
    "values",
    [
        (Sizes(1), Sizes(2)),
        (np.array([1.0, 2.0]), np.array([2.0, 1.0])),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (math, json),
    ],
    ids=["dataclass", "array", "tensor", "module"],
)
def test_objects_are_found_in_the_space(values: tuple[Any, ...]) -> None:
    config = {"x": values[0]}
    kept = record(TrialRecord(id="x", run="r", config=config, inexact=inexact_names(config)))
    read = Record.from_json(kept.to_json()).trials["x"]
    assert restored_config(read, {"x": Choice(values=values)}, "p")["x"] is values[0]


def test_a_function_of_another_process_is_found_in_the_space() -> None:
    read = TrialRecord(id="x", run="r", config={"x": "<function relu at 0x7f00>"}, inexact=("x",))
    assert restored_config(read, {"x": Choice(values=(relu, math.tanh))}, "p")["x"] is relu


def test_a_searcher_that_cannot_be_told_is_refused() -> None:
    class Deaf(Searcher):  # type: ignore[misc]
        pass

    check_resumable(Deaf(metric="auc", mode="max"), record())
    kept = record(trial("a", 0.5))
    check_resumable(ToldSearcher(), kept)
    check_resumable(BasicVariantGenerator(), kept)
    for searcher in (Deaf(metric="auc", mode="max"), tune.search.ConcurrencyLimiter(Deaf(), max_concurrent=2)):
        with pytest.raises(InvalidOption, match="searcher Deaf cannot be told of earlier trials"):
            check_resumable(searcher, kept)


def test_a_record_of_another_searcher_is_refused() -> None:
    with pytest.raises(SweepFailed, match="'abc' in sweep.json is not the id of a random trial"):
        search(BasicVariantGenerator(), record(trial("abc", 0.5, lr=0.1, key="a")), 1)


def test_optuna_is_told_and_draws_on(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    searcher = tune.search.create_searcher("optuna", seed=0)
    kept = record(*(trial(f"t{n}", 0.5 + n / 100, state="finished", lr=n / 10) for n in range(8)))
    made = ResumedSearch(searcher, kept, DOMAINS, "p", None)
    config = {"lr": tune.uniform(0.0, 1.0)}
    made.set_search_properties("auc", "max", config)
    made.add_configurations([Experiment("ctr", run=lambda _: None, config=config, num_samples=2)])
    found = all_of(made)
    assert len(found) == 2 and all(0.0 <= config["lr"] <= 1.0 for _, config in found)
    assert len(searcher._ot_study.trials) == 10


@pytest.mark.filterwarnings("ignore:Choices for a categorical")
def test_optuna_is_told_objects_as_tune_offers_them() -> None:
    pytest.importorskip("optuna")
    values = [Path("a"), np.int64(3), "adam"]
    domains: dict[str, Domain] = {"x": Choice(values=values)}
    space = inject_placeholders({"x": tune.choice(list(values))}, create_resolvers_map())
    ended = [trial(str(number), 0.5, state="finished", x=value) for number, value in enumerate([Path("a"), 3, "adam"])]
    kept = record(*(replace(each, inexact=inexact_names(each.config)) for each in ended))
    searcher = create_searcher("optuna", seed=1)
    made = ResumedSearch(searcher, Record.from_json(kept.to_json()), domains, "p", None)
    assert made.set_search_properties("auc", "max", space)
    made.add_configurations([Experiment("ctr", run=lambda _: None, config={}, num_samples=1)])
    assert [each.params["x"] for each in searcher._ot_study.trials] == space["x"].categories


def test_optuna_is_told_values_that_json_does_not_hold() -> None:
    pytest.importorskip("optuna")
    searcher = tune.search.create_searcher("optuna", seed=0)
    domains: dict[str, Domain] = {"layers": Choice(values=((64, 32), (8,)))}
    ended = trial("a", 0.5, state="finished", layers=(64, 32))
    kept = Record.from_json(record(TrialRecord(**{**_facts(ended), "inexact": ("layers",)})).to_json())
    made = ResumedSearch(searcher, kept, domains, "p", None)
    config = {name: tune_domain(domain) for name, domain in domains.items()}
    made.set_search_properties("auc", "max", config)
    made.add_configurations([Experiment("ctr", run=lambda _: None, config=config, num_samples=1)])
    assert searcher._ot_study.trials[0].params == {"layers": (64, 32)}
