"""Nothing that is stored or read may run code: no pickle on disk, no evaluated text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest

# These modules carry user functions to a new process, or values between the ranks of a run. They never write to disk.
MAY_CLOUDPICKLE = {
    "data/cache/builders/registered_datasets.py",
    "training/driver/horovod/collective.py",
    "training/driver/worker_error.py",
    "runtime/pickling.py",
    "training/collectives/torch_collective.py",
}
# Stores bytes alone, in a class that refuses rows of any other mode before they are decoded.
MAY_DISKCACHE = {"data/parquet/footer_store.py"}
UNSAFE_MODULES = {
    "_pickle", "cPickle", "code", "codeop", "dbm", "dill", "diskcache", "joblib", "jsonpickle", "marshal", "pickle",
    "runpy", "shelve",
}  # fmt: skip
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile"}
# `np.load(..., allow_pickle=True)` is recognized by its option, under any name of the module.
UNSAFE_METHODS = {
    "read_pickle", "to_pickle", "unsafe_load", "full_load", "deserialize_pandas", "load_extension",
    "enable_load_extension",
}  # fmt: skip
SAFE_YAML = {"SafeLoader", "CSafeLoader", "yaml.SafeLoader", "yaml.CSafeLoader"}


def _faults(file: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import_faults(file, node)
        elif isinstance(node, ast.Call):
            yield from (f"{file}:{node.lineno} {fault}" for fault in _call_faults(node))


def _import_faults(file: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for name in (name.partition(".")[0] for name in names):
        allowed = {"cloudpickle": MAY_CLOUDPICKLE, "diskcache_community": MAY_DISKCACHE}.get(name)
        if name in UNSAFE_MODULES or (allowed is not None and file not in allowed):
            yield f"{file}:{node.lineno} imports {name}"
    members = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
    if node_from := getattr(node, "module", None):
        for name in sorted(members):
            # The check would not see a call under another name.
            if (node_from, name) in {("torch", "load"), ("yaml", "load"), ("builtins", "eval"), ("builtins", "exec")}:
                yield f"{file}:{node.lineno} imports {name} of {node_from} by itself"
            if name in UNSAFE_METHODS:
                yield f"{file}:{node.lineno} imports {name}"


def _call_faults(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if called in UNSAFE_CALLS:
        yield f"calls {called}"
    if called.rpartition(".")[2] in UNSAFE_METHODS:
        yield f"calls {called}"
    if called == "torch.load" and options.get("weights_only") != "True":
        yield "calls torch.load without weights_only=True"
    if called in {"yaml.load", "yaml.load_all"} and options.get("Loader") not in SAFE_YAML:
        yield f"calls {called} without Loader=yaml.SafeLoader"
    if options.get("allow_pickle", "False") != "False":
        yield "allows pickle"
    if options.get("trust_remote_code", "False") != "False":
        yield "trusts remote code"


def test_no_pickle_and_no_evaluated_text(sources: Mapping[str, ast.Module]) -> None:
    assert [fault for file, tree in sources.items() for fault in _faults(file, tree)] == []


def test_allowed_files_exist(sources: Mapping[str, ast.Module]) -> None:
    assert sources.keys() >= MAY_CLOUDPICKLE | MAY_DISKCACHE


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle",
        "from cloudpickle import loads",
        "import marshal",
        "import shelve",
        "from diskcache import Cache",
        "from diskcache_community import Cache",
        "from diskcache_community.core import Disk",
        "eval('1')",
        "exec(text)",
        "builtins.eval(text)",
        "compile(text, name, 'exec')",
        "__import__(name)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "pd.read_pickle(path)",
        "from pandas import read_pickle",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "load_dataset(name, trust_remote_code=True)",
    ],
)
def test_the_check_sees(line: str) -> None:
    assert len(list(_faults("data/loader/loader.py", ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "model.eval()",
        "re.compile(text)",
        "torch.compile(model)",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "yaml.safe_load(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
    ],
)
def test_the_check_lets_pass(line: str) -> None:
    assert list(_faults("data/loader/loader.py", ast.parse(line))) == []


def test_the_check_lets_pass_where_it_is_needed() -> None:
    assert list(_faults("data/cache/builders/registered_datasets.py", ast.parse("import cloudpickle"))) == []
    assert list(_faults("data/parquet/footer_store.py", ast.parse("from diskcache_community import Disk"))) == []
    assert len(list(_faults("data/parquet/footer_store.py", ast.parse("import pickle")))) == 1
