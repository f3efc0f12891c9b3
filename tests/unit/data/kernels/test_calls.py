"""Import of the kernels: late, and once."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["forebay.__main__", "forebay.training.worker.fit", "forebay.data.cache.node.client"]
)
def test_what_moves_no_row_does_not_import_the_compiler(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'numba', 'llvmlite'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_a_warm_worker_has_loaded_them() -> None:
    code = "import sys, forebay.training.driver.warm_up as w; w.make_a_step(); print('numba' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "True\n"
