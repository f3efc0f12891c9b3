"""One table of options for jobs, sweeps and the command line."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

from forebay import llm
from forebay.errors import BadJob, InvalidOption
from forebay.training.job.recipe import call_for, parameters

JOBS = Path(__file__).parents[3] / "jobs"


@llm.with_options(finetuning="lora")
def recipe(options: llm.Options, words: str, share: float = 0.5) -> tuple[llm.Options, str, float]:
    return options, words, share


def test_fields_are_the_parameters_of_a_job() -> None:
    assert recipe(words="a", lr=0.1) == (llm.Options(finetuning="lora", lr=0.1), "a", 0.5)
    known = {each.name: each for each in parameters(recipe)}
    assert known["finetuning"].default == "lora" and known["words"].required
    assert str(known["schedule"]) == "schedule: 'cosine' | 'linear' | 'constant' = 'cosine'"
    options, *_ = call_for((tuple,), recipe, {"words": "a", "lora_r": "4", "mix": '{"a": 1}', "min_workers": "none"})
    assert (options.lora_r, options.mix, options.min_workers) == (4, {"a": 1.0}, None)
    with pytest.raises(BadJob, match="has no parameter 'lora'"):
        call_for((tuple,), recipe, {"words": "a", "lora": 4})
    with pytest.raises(BadJob, match=r"dtype=fp16 is not of type 'auto' \| 'fp32' \| 'bf16'"):
        call_for((tuple,), recipe, {"words": "a", "dtype": "fp16"})


def test_only_changed_options_are_passed_on() -> None:
    options = llm.Options(workers=4, lr=None, seed=0)
    assert options.changed() == {"workers": 4}
    assert llm.Options(**options.changed()) == options
    assert options.with_defaults({"lr": 1e-3, "seq_len": 8}).changed() == {"workers": 4, "lr": 1e-3, "seq_len": 8}


@pytest.mark.parametrize(
    "job", ["finetune_llm.py:job", "prefer_llm.py:job", "sweep_llm.py:mixed", "sweep_llm.py:sweep"]
)
def test_all_jobs_take_all_options(job: str) -> None:
    file, _, name = job.partition(":")
    function = runpy.run_path(str(JOBS / file))[name]
    assert inspect.signature(llm.Options).parameters.keys() <= {each.name for each in parameters(function)}


def test_every_option_has_a_meaning() -> None:
    meanings = re.findall(r"^ {4}(\w+): \S", inspect.getdoc(llm.Options) or "", flags=re.MULTILINE)
    assert meanings == list(inspect.signature(llm.Options).parameters)


def test_options_are_checked() -> None:
    with pytest.raises(InvalidOption, match="finetuning='prompt' is unknown"):
        llm.Options(finetuning="prompt")
    # Rows were prepared below the root of the disk.
    with pytest.raises(InvalidOption, match="storage='' names no folder"):
        llm.Options(storage="")
    with pytest.raises(InvalidOption, match=r"with_options\(rank=...\) is unknown"):
        llm.with_options(rank=4)
    with pytest.raises(InvalidOption, match="there is no data. Give data="):
        llm.job(llm.Options())
