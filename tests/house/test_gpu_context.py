"""Only code that was given a GPU opens a CUDA context: the first one of a process takes 0.5 GB of the GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest
from tests.house.figures import nodes_of

# Each uses the device that it was given, or asks for a GPU first.
MAY_USE_A_GPU = {
    "data/loader/batch.py",
    "data/loader/device/copies.py",
    "doctor/rounds/examination.py",
    "doctor/rounds/feeds.py",
    "llm/cost/meter.py",
    "llm/score/engines/hf.py",
    "runtime/gpus.py",
    "runtime/memory/pool.py",
    "training/checkpoint/serialization.py",
    "training/collectives/torch_collective.py",
    "training/driver/horovod/world.py",
    "training/driver/ray_train/membership.py",
    "training/job/resources.py",
    "training/state/rng.py",
}
OPENS_NONE = {"torch.cuda.is_available", "torch.cuda.device_count", "torch.cuda.is_initialized"}


def _uses(file: str, tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.cuda"):
            yield f"{file}:{node.lineno} imports from {node.module}"
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.startswith("torch.cuda.") and name.count(".") == 2 and name not in OPENS_NONE:
                yield f"{file}:{node.lineno} uses {name}"
        elif isinstance(node, ast.Call):
            pins = any(each.arg == "pin_memory" and ast.unparse(each.value) != "False" for each in node.keywords)
            if pins or (isinstance(node.func, ast.Attribute) and node.func.attr == "pin_memory"):
                yield f"{file}:{node.lineno} makes page-locked memory"


def test_only_code_with_a_gpu_opens_a_context(sources: Mapping[str, ast.Module]) -> None:
    found = [use for file, tree in sources.items() if file not in MAY_USE_A_GPU for use in _uses(file, tree)]
    assert found == []


def test_all_allowed_files_need_it(sources: Mapping[str, ast.Module]) -> None:
    assert [file for file in sorted(MAY_USE_A_GPU) if not list(_uses(file, sources[file]))] == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.current_device()",
        "torch.cuda.Stream(device)",
        "from torch.cuda import Stream",
        "torch.empty(8, pin_memory=True)",
        "torch.empty(8, pin_memory=pinned)",
        "tensor.pin_memory()",
    ],
)
def test_the_check_sees(line: str) -> None:
    assert len(list(_uses("data/loader/loader.py", ast.parse(line)))) == 1


@pytest.mark.parametrize("line", ["torch.cuda.is_available()", "torch.cuda.device_count()", "f(pin_memory=False)"])
def test_the_check_lets_pass(line: str) -> None:
    assert list(_uses("data/loader/loader.py", ast.parse(line))) == []
