"""Nothing that is stored or read may run code: no pickle on disk, no evaluated text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest

# What carries user functions to a process that was just started, never to a disk.
MAY_CLOUDPICKLE = {"driver/launch.py", "driver/raised.py", "cache/payload.py"}
UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "dill", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec"}


def _faults(file: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import_faults(file, node)
        elif isinstance(node, ast.Call):
            yield from _call_faults(file, node)


def _import_faults(file: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for name in (name.partition(".")[0] for name in names):
        if name in UNSAFE_MODULES or (name == "cloudpickle" and file not in MAY_CLOUDPICKLE):
            yield f"{file}:{node.lineno} imports {name}"


def _call_faults(file: str, node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if called in UNSAFE_CALLS:
        yield f"{file}:{node.lineno} calls {called}"
    if called == "torch.load" and options.get("weights_only") != "True":
        yield f"{file}:{node.lineno} calls torch.load without weights_only=True"
    if options.get("allow_pickle", "False") != "False":
        yield f"{file}:{node.lineno} allows pickle"


def test_no_pickle_and_no_evaluated_text(sources: Mapping[str, ast.Module]) -> None:
    assert [fault for file, tree in sources.items() for fault in _faults(file, tree)] == []


def test_allowed_files_exist(sources: Mapping[str, ast.Module]) -> None:
    assert sources.keys() >= MAY_CLOUDPICKLE


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_check_sees(line: str) -> None:
    assert len(list(_faults("loader/loader.py", ast.parse(line)))) == 1


@pytest.mark.parametrize("line", ["model.eval()", "torch.load(path, weights_only=True)", "np.load(path)"])
def test_the_check_lets_pass(line: str) -> None:
    assert list(_faults("loader/loader.py", ast.parse(line))) == []
