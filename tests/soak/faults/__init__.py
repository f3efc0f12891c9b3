"""The faults of the matrix: importing a file here registers its faults."""

from __future__ import annotations

import importlib
import pkgutil


def load(*, under_ray: bool = True) -> None:
    """Import every fault, those `under_ray` too where they are present."""
    for folder in ("tests.soak.faults", "tests.ray.faults")[: 1 + under_ray]:
        try:
            package = importlib.import_module(folder)
        except ModuleNotFoundError as error:
            if error.name not in ("tests.ray", folder):
                raise
            continue
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith(("test_", "conftest")):
                importlib.import_module(f"{folder}.{module.name}")
