"""A job over a mixture from the command line.

What is mixed, what is trained, and clear errors before training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import TRAINING

from forebay.training.runs.result import load_result

Call = Callable[..., Any]

JOB = """
def job(web: str, code: str, storage: str, weights: dict[str, float] = {"web": 0.75, "code": 0.25}, until: str = "all",
        columns: list[str] = ["x1", "x2"], stages: bool = False, plain: bool = False, workers: int = 1,
        epochs: int = 2, name: str = "mixed") -> fb.Job:
    plans = {name: fb.build_plan(fb.scan(path), seed=3, lanes=4) for name, path in (("web", web), ("code", code))}
    if stages:
        mix = fb.Mixture(plans, [(0, {"web": 1.0}), (64, weights)], rows=80)
    else:
        mix = fb.Mixture(plans, weights, until=until)
    first = fb.Transform(x=fb.Dense(["x1", "x2"]), label=fb.Label("clicked"))
    transform = {"web": first, "code": fb.Transform(x=fb.Dense(columns), label=fb.Label("clicked"))}
    held_out = fb.Data(plan=fb.Mixture(plans, until="once"), transform=first, global_batch=32)
    evaluated = partial(train, evaluate=fb.evaluate_auc)
    if plain:
        return fb.Job(train=evaluated, data=fb.Data(plan=plans["web"], transform=first, global_batch=16), cache=None,
                      storage=storage, name=name, held_out=held_out)
    return fb.Job(train=evaluated, data=fb.Data(plan=mix, transform=transform, global_batch=16), held_out=held_out,
                  epochs=epochs, workers=workers, cache=None, storage=storage, name=name, checkpoint_every=2)
"""


@pytest.fixture
def words(parquet_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., list[str]]:
    (tmp_path / "job.py").write_text(TRAINING + JOB)
    parquet_folder({"a.parquet": [60, 40]}, folder="web")
    parquet_folder({"a.parquet": [10, 10]}, folder="code", seed=1)
    parquet_folder({"a.parquet": [0], "b.parquet": [0]}, folder="empty")

    def words_of(**values: object) -> list[str]:
        given = {"web": tmp_path / "web", "code": tmp_path / "code", "storage": tmp_path / "runs"} | values
        return [str(tmp_path / "job.py"), *(f"{name}={value}" for name, value in given.items())]

    return words_of


def test_a_run_tells_the_losses_of_each_data_set(forebay: Call, words: Call, tmp_path: Path) -> None:
    said = forebay("run", "--driver", "local", *words())
    assert said.code == 0, said.err
    result = load_result(str(tmp_path / "runs" / "mixed"))
    assert result is not None and result.is_finished
    for epoch in result.epochs:
        metrics = epoch.metrics
        assert {"loss", "loss/code", "loss/web", "auc", "auc/code", "auc/web"} == set(metrics)
        shares = json.loads(forebay("plan", *words(), "--mixture", "--json").out)["epochs"][epoch.epoch]
        mean = sum(shares[name]["share"] * metrics[f"loss/{name}"] for name in ("code", "web"))
        assert metrics["loss"] == pytest.approx(mean, rel=0.02), "steps differ by a row, and losses change"
    assert {"loss/code", "loss/web"} <= set(result.steps[-1].metrics)
    assert "loss/code" in said.out + said.err


def test_the_plan_of_a_mixture(forebay: Call, words: Call) -> None:
    said = forebay("plan", *words(), "--mixture")
    assert said.code == 0, said.err
    assert all(text in said.out for text in ("own epochs", "0.7444", "1.990")), said.out
    facts = json.loads(forebay("plan", *words(until="once", epochs=3), "--mixture", "--json").out)
    assert facts["rows"] == 120 and len(facts["epochs"]) == 3
    assert facts["epochs"][2] == {
        "code": {"rows": 20, "share": 20 / 120, "own_epochs": 3.0},
        "web": {"rows": 100, "share": 100 / 120, "own_epochs": 3.0},
    }
    staged = json.loads(forebay("plan", *words(stages=True), "--mixture", "--json").out)
    assert staged["epochs"][0]["code"]["rows"] == 4
    assert staged["epochs"][1]["code"]["share"] == 0.25


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({"weights": '{"web": 0.75, "code": 0}'}, "InvalidOption", "'code' the weight 0"),
        ({"weights": '{"web": 0, "code": 0}'}, "InvalidOption", "'code' the weight 0"),
        ({"weights": '{"web": 0.5, "code": -0.5}'}, "InvalidOption", "'code' the weight -0.5"),
        ({"weights": '{"web": 1, "code": NaN}'}, "InvalidOption", "'code' the weight nan"),
        ({"weights": '{"web": 1, "code": 1e-9}'}, "InvalidOption", "2**-20"),
        ({"weights": '{"web": 1, "code": 1, "news": 1}'}, "InvalidOption", "weights= names ['news']"),
        ({"weights": '{"web": 1}'}, "InvalidOption", "leaves out ['code']"),
        ({"weights": "{}"}, "InvalidOption", "has the stage (0, {})"),
        ({"until": "never"}, "InvalidOption", "until='never'"),
        ({"code": "empty"}, "NoFiles", "none of the 2 files has a row"),
        ({"columns": '["x1"]'}, "InvalidOption", "same names, dtypes and trailing shapes"),
        ({"columns": '["nothing"]'}, "MissingColumn", "nothing"),
        ({"workers": 5}, "TooManyRanks", "5 ranks cannot share 4 lanes, as many as dataset 'code' has"),
    ],
)
def test_impossible_mixtures_fail_before_training(
    forebay: Call, words: Call, tmp_path: Path, values: dict[str, object], kind: str, text: str
) -> None:
    given = {name: tmp_path / "empty" if value == "empty" else value for name, value in values.items()}
    for command in (("run", "--driver", "local", *words(**given)), ("plan", *words(**given), "--mixture")):
        said = forebay(*command)
        assert said.code == 3, said.out + said.err
        assert f"{kind}: " in said.err and text in said.err.replace("\n", " "), said.err
        assert "Traceback" not in said.err
    assert not (tmp_path / "runs" / "mixed" / "result.json").exists()


def test_a_job_without_a_mixture_has_none_to_show(forebay: Call, words: Call) -> None:
    said = forebay("plan", *words(plain=True), "--mixture")
    assert said.code == 3 and "mixes nothing" in said.err
    assert forebay("plan", "manifest.json", "epochs=2").code == 2
