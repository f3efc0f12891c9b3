"""The job file and the fleet file of docs/placement.md work together."""

from __future__ import annotations

import re
from pathlib import Path

from forebay.fleet.federation.dry_run import dry_run
from forebay.fleet.fleet_file import parse_fleet
from forebay.fleet.spec.job_toml import parse_job_spec

PAGE = Path(__file__).resolve().parents[3] / "docs" / "placement.md"


def test_the_files_of_the_page_are_right() -> None:
    job, fleet = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    other = fleet.replace("eu-1", "us-1").replace("h100", "a100-40")
    (plan,) = dry_run(parse_job_spec(job), parse_fleet(fleet + other))
    best = [(choice.cluster, choice.sku, choice.market) for choice in plan.placement.choices]
    assert best[0] == ("eu-1", "h100", "spot")
    assert len(best) == 4
