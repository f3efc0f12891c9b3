"""Public names, spelled out. A change here changes the public surface and belongs in CHANGELOG.md."""

from __future__ import annotations

import typer

import forebay
from forebay.cli.app import app

PUBLIC_NAMES = [
    "Action",
    "Admission",
    "Array",
    "Augment",
    "Batch",
    "BatchSchedule",
    "Block",
    "Bytes",
    "CacheSpec",
    "Categorical",
    "Control",
    "Counters",
    "Cursor",
    "Data",
    "Dataset",
    "DeadlineScheduler",
    "Dense",
    "DiskCache",
    "DoubleEvery",
    "Driver",
    "Elastic",
    "EmbeddingNorms",
    "ForebayError",
    "Future",
    "Image",
    "Job",
    "JobSpec",
    "Label",
    "Launch",
    "LazyAdam",
    "LinearScaling",
    "Loader",
    "Lookup",
    "LossSpikes",
    "Manifest",
    "Mixture",
    "Moments",
    "Mount",
    "NanGuard",
    "NoiseScale",
    "Order",
    "Past",
    "Place",
    "Plan",
    "Prepared",
    "PreparedStream",
    "Quantiles",
    "Ragged",
    "RandomResize",
    "Resources",
    "Result",
    "RowGroup",
    "RowRandom",
    "RowSGD",
    "RowWiseAdagrad",
    "Sampled",
    "ScaleSchedule",
    "Seconds",
    "Sequences",
    "SqrtScaling",
    "StartPolicy",
    "SubmittedJob",
    "Sweep",
    "SweepResult",
    "Table",
    "Tables",
    "Task",
    "TaskWorkers",
    "Time",
    "TrainSetup",
    "Transform",
    "Unreachable",
    "Verdict",
    "Vocabulary",
    "WarmStart",
    "Worker",
    "World",
    "build_plan",
    "callbacks",
    "errors",
    "evaluate_auc",
    "events",
    "fit",
    "fit_vocabulary",
    "from_ray_data",
    "hf",
    "jagged",
    "keep_rows",
    "keyed_jagged",
    "lightning",
    "llm",
    "load_job_spec",
    "load_manifest",
    "load_prepared",
    "load_preprocessor",
    "load_sweep",
    "look_up",
    "losses_by_source",
    "optional_callback",
    "petastorm",
    "prepare",
    "prepare_on_ray",
    "prepare_stream",
    "ramp",
    "ray_train",
    "run",
    "run_sweep",
    "save_manifest",
    "scan",
    "score",
    "show_report",
    "stratified_split",
    "submit",
    "torch",
]

VERBS = [
    *(
        "cache clear",
        "cache ls",
        "cache verify",
        "cluster apply",
        "cluster delete",
        "cluster publish-capacity",
        "clusters",
        "controller",
        "doctor",
        "evaluate",
        "explain",
        "export",
        "export-tables",
        "job-schema",
        "jobs",
        "logs",
        "memory",
        "peek",
        "plan",
        "plan-tables",
        "prepare job",
        "prepare ls",
        "prepare rm",
    ),
    *("ps", "report", "rows", "run", "scale", "scan", "score", "series", "stop", "submit", "warm", "watch"),
]


def test_public_names() -> None:
    assert sorted(forebay.__all__) == PUBLIC_NAMES
    assert set(PUBLIC_NAMES) <= set(dir(forebay))


def test_public_names_are_documented() -> None:
    assert [name for name in PUBLIC_NAMES if not (getattr(forebay, name).__doc__ or "").strip()] == []


def test_verbs() -> None:
    assert sorted(_verbs(typer.main.get_command(app))) == VERBS


def _verbs(command: object) -> list[str]:
    """All commands below a group, as the user types them."""
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        return [""]
    return [f"{name} {rest}".strip() for name, below in subcommands.items() for rest in _verbs(below)]
