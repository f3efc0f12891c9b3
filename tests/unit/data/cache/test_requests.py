"""Pickled datasets for another process, with the user's code where needed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from forebay.data.cache.builders.registered_datasets import pack, unpack
from forebay.data.manifest.manifest import Manifest
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.errors import TransformFailed

CODE = "from math import sqrt\nFACTOR = 2\ndef twice(batch):\n    return {'n': batch * FACTOR * sqrt(4)}\n"


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "my_job.py").write_text(CODE)
    spec = importlib.util.spec_from_file_location("my_job", tmp_path / "my_job.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_job", module)
    spec.loader.exec_module(module)
    return module


def test_features_travel_as_data(memory_manifest: Callable[..., Manifest]) -> None:
    dataset = Dataset(memory_manifest([1, 2]), Transform(x=Dense("id")))
    again = unpack(pack(dataset))
    assert again.manifest == dataset.manifest
    assert again.fingerprint == dataset.fingerprint


def test_functions_of_own_files_travel_with_their_code(
    memory_manifest: Callable[..., Manifest], job_file: ModuleType
) -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    payload = pack(Dataset(memory_manifest([1]), Transform(fn=job_file.twice)))
    assert cloudpickle.list_registry_pickle_by_value() == before
    code = (
        "import sys; from forebay.data.cache.builders.registered_datasets import unpack; "
        "print(unpack(bytes.fromhex(sys.argv[1])).transform.fn(5)['n'])"
    )
    found = subprocess.run([sys.executable, "-c", code, payload.hex()], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "20.0"


def test_a_missing_package_is_named(memory_manifest: Callable[..., Manifest], job_file: ModuleType) -> None:
    payload = cloudpickle.dumps(Dataset(memory_manifest([1]), Transform(fn=job_file.twice)))
    del sys.modules["my_job"]
    with pytest.raises(TransformFailed, match=r"my_job.*Install its imports there"):
        unpack(payload)
