"""One module asks PyTorch whether there are GPUs. All others ask the device that they were given.

Otherwise a job on CPUs would behave differently on a machine with GPUs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest
from tests.house.figures import nodes_of

QUESTIONS = {"is_available", "device_count", "current_device", "get_device_properties", "is_initialized"}
MAY_ASK = {
    "platform/forebay/runtime/gpus.py": "the home of the question",
    "platform/forebay/data/loader/device/copies.py": "checks a device that the user has named",
    "platform/forebay/training/checkpoint/serialization.py": "locks pages in a process that has used a GPU",
    "platform/forebay/training/driver/ray_train/membership.py": "frees memory of a GPU that this process has used",
}
"""Modules that ask PyTorch about GPUs, with the reason."""
RESERVE = {
    "platform/forebay/training/job/resources.py": "share of a worker",
    "platform/forebay/training/driver/ray_train/driver.py": "a worker of Ray Train",
    "platform/forebay/training/driver/ray_train/trainer.py": "a worker of Ray Train",
    "platform/forebay/training/driver/horovod/backend.py": "a worker of Horovod",
    "platform/forebay/llm/score/scoring.py": "an engine",
}
"""Modules that may reserve GPUs on Ray. Preparations, data workers and actors of nodes never take one."""


def of_package(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, ast.Module]]:
    roots = ("platform/forebay/", "jobs/")
    return ((name, tree) for name, tree in trees.items() if name.startswith(roots))


def asks(tree: ast.Module) -> bool:
    """Whether a module asks `torch.cuda`, or `cuda` imported from torch, or moves tensors by `.cuda()`."""
    for node in nodes_of(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(attr="cuda") | ast.Name(id="cuda"), attr=name) if name in QUESTIONS:
                return True
            case ast.Call(func=ast.Attribute(attr="cuda")):
                return True
    return False


def reserves(tree: ast.Module) -> bool:
    for node in nodes_of(tree):
        match node:
            case ast.keyword(arg="num_gpus") | ast.keyword(arg="use_gpu"):
                return True
            case ast.Dict(keys=keys) if any(isinstance(key, ast.Constant) and key.value == "num_gpus" for key in keys):
                return True
            case ast.Dict(keys=keys) if {"CPU", "GPU"} <= {key.value for key in keys if isinstance(key, ast.Constant)}:
                return True
    return False


def test_only_the_named_modules_ask_whether_there_are_gpus(trees: Mapping[str, ast.Module]) -> None:
    assert {name for name, tree in of_package(trees) if asks(tree)} == set(MAY_ASK)


def test_only_the_named_modules_reserve_gpus(trees: Mapping[str, ast.Module]) -> None:
    assert {name for name, tree in of_package(trees) if reserves(tree)} == set(RESERVE)


@pytest.mark.parametrize(
    ("line", "is_seen"),
    [
        ("torch.cuda.is_available()", True),
        ("from torch import cuda; cuda.device_count()", True),
        ("x.cuda()", True),
        ("found = torch.cuda.is_available", True),
        ("device.type == 'cuda'", False),
        ("torch.cuda.set_device(device)", False),
    ],
)
def test_the_check_sees(line: str, is_seen: bool) -> None:
    assert asks(ast.parse(line)) is is_seen


def test_every_job_takes_gpus(trees: Mapping[str, ast.Module]) -> None:
    """By a parameter that reaches `fb.Job`, or by the options of a language model."""
    for name, tree in trees.items():
        if not name.startswith("jobs/"):
            continue
        made = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "fb.Job"]
        for call in made:
            given = {each.arg: ast.unparse(each.value) for each in call.keywords}
            assert given.get("resources") == "fb.Resources(gpus=gpus)", name
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        entries = [functions[each] for each in ("job", "sweep") if each in functions]
        assert entries or "main" in functions, f"{name}: neither a job nor a script of another framework"
        for function in entries:
            arguments = {each.arg for each in function.args.args}
            assert "gpus" in arguments or "options" in arguments, f"{name}: {function.name}"
            documented = ast.get_docstring(function) or ""
            assert "gpus:" in documented or "llm.Options" in documented, f"{name}: {function.name}"
