"""Names of runs and trials, in both directions."""

from __future__ import annotations

import pytest

from forebay.sweep.layout import generation_of, run_name, runs_path, trial_id_of
from forebay.training.job.job import NAME_FORM


@pytest.mark.parametrize("generation", [0, 1, 12])
@pytest.mark.parametrize("sweep", ["ctr", "ctr.v2", "a-b_c"])
def test_trial_is_found_by_the_name_of_its_run(sweep: str, generation: int) -> None:
    run = run_name(sweep, "1a2b3_00007", generation)
    assert NAME_FORM.fullmatch(run)
    assert trial_id_of(run, sweep) == "1a2b3_00007"
    assert generation_of(run, sweep) == generation


@pytest.mark.parametrize("run", ["ctr", "ctr.", "other.1a_0", "ctrl.1a_0", "ctr.1a_0.x", "ctr.1a_0.0", "ctr.1a_0.1.2"])
def test_other_names_are_no_trials(run: str) -> None:
    assert trial_id_of(run, "ctr") is None


def test_options_of_a_uri_stay_at_its_end() -> None:
    assert runs_path("s3://bucket/all/?region=x", "ctr") == "s3://bucket/all/ctr/runs?region=x"
