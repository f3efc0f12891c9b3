"""Pages of studies: what a run writes, and the reading by hand that it keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def kept_reading(document: Path) -> list[str]:
    """The hand-written part below the figures, which a new run keeps. Empty without one."""
    if not document.exists():
        return []
    _, mark, reading = document.read_text().partition("## Reading")
    return [mark + reading] if mark else []


def write_study(out: Path, name: str, found: Mapping[str, Any], text: str, picture: Figure) -> list[Path]:
    """Write the numbers, the page and the picture of a study as NAME.json, .md and .png into `out`."""
    numbers, document, image = (out / f"{name}.{suffix}" for suffix in ("json", "md", "png"))
    numbers.write_text(json.dumps(found) + "\n")
    document.write_text("\n".join([text, *kept_reading(document)]))
    picture.savefig(image, dpi=100)
    return [numbers, document, image]
