"""Command line of a study: it measures and writes its page, or only the page, from the numbers of an earlier run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from studies.reports.page import write_study

ROOT = Path(__file__).parents[2]
Found = Mapping[str, Any]


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of the options that every study has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "experiments")
    parser.add_argument("--report", action="store_true", help="only the page and the picture, from the numbers")
    return parser


def run_study(
    options: argparse.Namespace,
    name: str,
    measure: Callable[[], Found],
    *,
    page: Callable[[Found], str],
    picture: Callable[[Found], Figure],
) -> None:
    """Measure, unless `--report` was given, write `name` as numbers, page and picture, and print their paths."""
    found = json.loads((options.out / f"{name}.json").read_text()) if options.report else measure()
    for path in write_study(options.out, name, found, page(found), picture(found)):
        print(path)
