"""Small rooms: a folder of few modules, or a short module of one importer, has a reason or is merged."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.house.figures import imported_by

Trees = Mapping[str, ast.Module]

FEWEST_MODULES = 3
SHORT_LINES = 70
SMALL_FOLDERS = {
    "data/provenance": "names of rows lie below plans and windows, these two files above them",
}
SHORT_MODULES = {
    "cli/ray_token.py": "a rule of safety, beside the list of commands",
    "data/loader/device/host_tensors.py": "memory of host batches, beside their copies",
    "fleet/placement/hold.py": "a pure policy",
    "llm/score/evaluation/exact_match.py": "one way to evaluate, beside others of its size",
    "llm/score/pool/local_pool.py": "one of two pools",
    "sweep/run_sweep.py": "imports without Ray, its neighbour does not",
    "training/driver/ray_train/warm_up.py": "imports little: a controller waits for it",
    "training/monitors/rows_at_fault.py": "texts of monitors, which the worker's vote only carries",
    "training/run_report/run_table.py": "`Result.show` imports it by name too",
    "training/runs/storage_check.py": "a check of a run's storage, which only the command line asks for",
    "training/strategies/torch_strategies.py": "imports every strategy: the protocol's file must not",
    "training/tables/exchange/gradients.py": "one of four messages of tables",
}


def test_small_folders_have_a_reason(repository: Path) -> None:
    package = repository / "platform" / "forebay"
    counts: dict[str, int] = defaultdict(int)
    for path in package.rglob("*.py"):
        counts[str(path.parent.relative_to(package))] += path.name != "__init__.py"
    assert len(counts) > 50
    small = {
        folder for folder, count in counts.items() if count < FEWEST_MODULES and not _holds_rooms(package / folder)
    }
    assert small == set(SMALL_FOLDERS)


def _holds_rooms(folder: Path) -> bool:
    return any(path.is_dir() and path.name != "__pycache__" for path in folder.iterdir())


def test_short_modules_of_one_importer_have_a_reason(sources: Trees, repository: Path) -> None:
    package = repository / "platform" / "forebay"
    importers = imported_by(sources)
    assert len(importers) > 300
    short = {
        file
        for file, users in importers.items()
        if len(users) == 1 and len((package / file).read_text().splitlines()) < SHORT_LINES
    }
    assert short == set(SHORT_MODULES)
