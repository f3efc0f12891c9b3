"""Public names, spelled out. A change here changes the public surface and belongs in CHANGELOG.md."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import typer

import forebay
from forebay.cli.app import app_of

MOST_COMMANDS = 20
PUBLIC_NAMES = [
    "Array",
    "Augment",
    "Batch",
    "Bytes",
    "CacheSpec",
    "Categorical",
    "Control",
    "Cursor",
    "Data",
    "Dataset",
    "DeadlineScheduler",
    "Dense",
    "DiskCache",
    "Driver",
    "Elastic",
    "Evaluation",
    "ForebayError",
    "History",
    "Horizon",
    "Image",
    "Job",
    "JobSpec",
    "KeepBest",
    "Label",
    "Loader",
    "Manifest",
    "Mixture",
    "Plan",
    "Prepared",
    "Ragged",
    "Resources",
    "Result",
    "Sampled",
    "Seconds",
    "Sequences",
    "Sweep",
    "SweepResult",
    "Table",
    "Time",
    "Transform",
    "Vocabulary",
    "Worker",
    "World",
    "batch_size",
    "bridges",
    "build_plan",
    "callbacks",
    "errors",
    "evaluate_auc",
    "events",
    "fit",
    "fleet",
    "llm",
    "monitors",
    "preparation",
    "prepare",
    "run",
    "run_sweep",
    "scan",
    "submit",
    "tables",
    "workers_here",
]

VERBS = [
    *(
        "cache clear",
        "cache ls",
        "cache verify",
        "doctor",
        "fleet apply-cluster",
        "fleet clusters",
        "fleet controller",
        "fleet delete-cluster",
        "fleet explain",
        "fleet publish-capacity",
        "fleet rebuild",
        "fleet schema",
        "init",
        "jobs",
        "llm evaluate",
        "llm export",
        "llm memory",
        "llm score",
        "logs",
        "plan",
        "prepare job",
        "prepare ls",
        "prepare rm",
    ),
    *(
        "report",
        "rows",
        "run",
        "scale",
        "scan",
        "series",
        "stop",
        "submit",
        "tables export",
        "tables plan",
        "warm",
    ),
]


def test_public_names() -> None:
    assert sorted(forebay.__all__) == PUBLIC_NAMES
    assert set(PUBLIC_NAMES) <= set(dir(forebay))


def test_public_names_are_documented() -> None:
    assert [name for name in PUBLIC_NAMES if not (getattr(forebay, name).__doc__ or "").strip()] == []


def test_verbs() -> None:
    assert sorted(_verbs(typer.main.get_command(app_of()))) == VERBS


def _verbs(command: object) -> list[str]:
    """All commands below a group, as the user types them."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        return [""]
    return [f"{name} {rest}".strip() for name, below in subcommands.items() for rest in _verbs(below)]


def test_commands_are_few() -> None:
    groups = getattr(typer.main.get_command(app_of()), "commands", {})
    assert 10 < len(groups) <= MOST_COMMANDS


def test_no_lazy_name_is_that_of_a_module_beside_it(trees: Mapping[str, ast.Module]) -> None:
    """An import of the module, from anywhere, would put it in place of the function."""
    seen = 0
    for file, tree in trees.items():
        if not file.startswith("platform/forebay/") or not file.endswith("/__init__.py"):
            continue
        package = file.removeprefix("platform/").removesuffix("/__init__.py").replace("/", ".")
        calls = [
            each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) == "lazy_names"
        ]
        for call in calls:
            homes: dict[str, str] = ast.literal_eval(call.args[1])
            seen += len(homes)
            assert not [name for name, home in homes.items() if home == f"{package}.{name}"], file
    assert seen > 100
