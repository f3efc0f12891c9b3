"""Catalogue of a cluster, which the chart writes into the ConfigMap `forebay-catalogue`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.clusters.cluster import Cluster
from forebay.fleet.spec.fields import first_fault

CATALOGUE = "forebay-catalogue"
"""Name of the ConfigMap. Its key is `catalogue.json`."""


def parse_catalogue(text: str, where: str) -> Cluster:
    """Cluster of a catalogue. Raises `InvalidOption`, which names `where`."""
    try:
        return TypeAdapter(Cluster).validate_python(json.loads(text))
    except ValueError as error:
        why = first_fault(error) if isinstance(error, ValidationError) else error
        raise InvalidOption(f"{where} is no catalogue of a cluster: {why} Install the chart again.") from None
    except InvalidJobSpec as error:
        raise InvalidOption(f"{where} is no catalogue of a cluster: {error} Install the chart again.") from None


def load_catalogue(path: str | Path) -> Cluster:
    """Cluster of a catalogue in a file. Raises `InvalidOption`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} cannot be read ({error}). Give the catalogue.json of the chart.") from error
    return parse_catalogue(text, str(path))
