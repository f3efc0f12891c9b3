"""Names and commands on the pages about language models exist in the job and at the command line."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
NOT_OF_THE_JOB = {
    "the same `name` again",
    "prepared below `storage`",
    "`forebay llm export RUN --merge`",
}


def parameters() -> set[str]:
    spec = importlib.util.spec_from_file_location("finetune_llm", REPOSITORY / "jobs" / "finetune_llm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return set(inspect.signature(module.job).parameters)


def test_every_name_for_those_who_come_from_others_is_a_parameter_of_the_job() -> None:
    page = (REPOSITORY / "docs" / "coming-from-llm.md").read_text()
    table = page.split("## Names\n")[1].split("\n\n")[0].splitlines()[2:]
    cells = [line.split("|")[1].strip() for line in table]
    assert len(cells) > 30 and set(cells) >= NOT_OF_THE_JOB
    named = {name for cell in cells if cell not in NOT_OF_THE_JOB for name in re.findall(r"`(\w+)[=`]", cell)}
    assert named <= parameters()


def test_every_option_of_the_tutorial_is_a_parameter_of_the_job() -> None:
    page = (REPOSITORY / "docs" / "llm-tutorial.md").read_text()
    commands = re.findall(r"^forebay run .*finetune_llm.py(.*)$", page, flags=re.MULTILINE)
    assert len(commands) >= 2
    assert {name for command in commands for name in re.findall(r" (\w+)=", command)} <= parameters()
