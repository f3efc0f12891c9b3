"""Names of Ray that may move.

All are listed, and a missing one is refused before anything starts.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import ray

from forebay.errors import MissingPackage, UnsupportedRay
from forebay.ray_cluster import private_names
from forebay.ray_cluster.private_names import (
    EVERYTHING,
    PRIVATE_NAMES,
    RAY_DATA,
    RAY_TRAIN,
    SMALL_NODES,
    SWEEP,
    attributes_of_instances,
    check_ray,
    is_found,
)
from forebay.ray_cluster.session import ray_session
from forebay.runtime.extras import TESTED_RAY, missing_package, unsupported_ray
from forebay.training.driver.driver import named_driver

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "platform" / "forebay"
FEATURES = {
    "training/driver/ray_train": RAY_TRAIN,
    "sweep": SWEEP,
    "data/preparation": RAY_DATA,
    "testing": SMALL_NODES,
    "": EVERYTHING,
}
# Needs a package that may be missing here. It uses none of these names, as the other tests of this file would show.
NOT_IMPORTED = "training/driver/horovod"
# A setting of `ray.init`, and what some searchers have, which is looked for with a default.
NO_NAMES = {"_system_config", "_space"}


def private_names_in(tree: ast.Module, module: ModuleType | None = None) -> set[str]:
    """Private names of Ray in a file.

    `module:name` where it is imported, else the attribute alone.
    """
    return {
        *_imported(tree),
        *_attributes(tree),
        *_replaced(tree),
        *_in_texts(tree),
        *(_inherited(tree, module) if module else ()),
    }


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "ray":
                private = any(part.startswith("_") for part in module.split("."))
                private = private or module.startswith(("ray.train.v2", "ray.core", "ray.cluster_utils"))
                yield from (f"{module}:{alias.name}" for alias in names if private or alias.name.startswith("_"))
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.startswith("ray.") and "._" in alias.name)


def _attributes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "os")):
                pass
            case ast.Attribute(attr=name) if _is_private(name):
                yield name


def _replaced(tree: ast.Module) -> Iterator[str]:
    """Attributes that are set on a class of Ray."""
    of_ray = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ray"
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name, ctx=ast.Store()) if owner in of_ray:
                yield name


def _in_texts(tree: ast.Module) -> Iterator[str]:
    """Names for `getattr` and `setattr`.

    Left out: a module's own attributes, as in `__getstate__`.
    """
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_own(node.value)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if _is_private(text) and text.isidentifier() and text not in own:
                yield text


def _inherited(tree: ast.Module, module: ModuleType) -> Iterator[str]:
    """Private members of Ray's classes that a class uses.

    Methods that it overrides, and attributes.
    """
    for node in ast.walk(tree):
        kind = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        theirs = [base for base in getattr(kind, "__mro__", ()) if base.__module__.partition(".")[0] == "ray"]
        if not theirs:
            continue
        found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and _is_own(each.value)}
        stored = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and _is_stored(each)}
        methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        of_ray = {name for base in theirs for name in vars(base)} | attributes_of_instances(theirs[0])
        yield from (name for name in (found | methods) - stored if _is_private(name) and name in of_ray)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NO_NAMES


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _is_stored(node: ast.Attribute) -> bool:
    return _is_own(node.value) and isinstance(node.ctx, ast.Store)


def feature_of(file: str) -> str:
    return next(feature for folder, feature in FEATURES.items() if file.startswith(folder))


def is_listed(name: str, feature: str) -> bool:
    listed = [each.replace(":", ".") for each in (*PRIVATE_NAMES[EVERYTHING], *PRIVATE_NAMES[feature])]
    if "." in name:
        return any(f"{each}.".startswith(f"{name.replace(':', '.')}.") for each in listed)
    return any(name in each.split(".") for each in listed)


@cache
def files_with_ray() -> dict[str, ast.Module]:
    """Syntax tree per file of the package that imports Ray."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    trees = {file: ast.parse(text) for file, text in texts.items() if "ray" in text}
    return {file: tree for file, tree in sorted(trees.items()) if _uses_ray(tree)}


def _uses_ray(tree: ast.Module) -> bool:
    return any(
        name.partition(".")[0] == "ray"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    )


def test_every_private_name_is_listed_for_what_uses_it() -> None:
    trees = files_with_ray()
    assert len(trees) > 30
    found = {
        (file, name)
        for file, tree in trees.items()
        for name in private_names_in(tree, _module(file))
        if not is_listed(name, feature_of(file))
    }
    assert found == set(), "add the names to platform/forebay/ray_cluster/private_names.py"


def test_no_name_is_listed_that_nothing_uses() -> None:
    texts = [(PACKAGE / file).read_text() for file in files_with_ray()]
    names = {name.replace(":", ".").rpartition(".")[2] for listed in PRIVATE_NAMES.values() for name in listed}
    assert {name for name in names if not any(name in text for text in texts)} == set()


def _module(file: str) -> ModuleType | None:
    if file.startswith(NOT_IMPORTED):
        return None
    return importlib.import_module(".".join(("forebay", *Path(file).with_suffix("").parts)).removesuffix(".__init__"))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from ray._private.worker import global_worker", "ray._private.worker:global_worker"),
        ("from ray.train.v2.api.config import RunConfig", "ray.train.v2.api.config:RunConfig"),
        ("from ray.tune import _hidden", "ray.tune:_hidden"),
        ("import ray._private.worker", "ray._private.worker"),
        ("trial._hidden = 1", "_hidden"),
        ("from ray.tune.experiment import Trial\nTrial.reset = None", "reset"),
        ("setattr(trial, '_hidden', 1)", "_hidden"),
    ],
)
def test_the_check_sees(line: str, name: str) -> None:
    assert name in private_names_in(ast.parse(line))
    assert not is_listed(name, EVERYTHING)


def test_the_check_sees_what_a_class_overrides_and_reads() -> None:
    own = ModuleType("own")
    source = (
        "from ray.train.torch import TorchTrainer\n"
        "class OwnTrainer(TorchTrainer):\n"
        "    def _create_default_callbacks(self): self._own = self._not_ours()\n"
        "    def _not_ours(self): return self._get_rayjob_info\n"
    )
    exec(source, own.__dict__)
    assert "_create_default_callbacks" in private_names_in(ast.parse(source), own)
    assert "_own" not in private_names_in(ast.parse(source), own)


@pytest.mark.parametrize("name", [name for names in PRIVATE_NAMES.values() for name in names])
def test_the_installed_ray_has(name: str) -> None:
    assert is_found(name)


@pytest.mark.parametrize(
    "name",
    [
        "ray.no_such_module:thing",
        "ray._private.services:no_such_function",
        "ray.tune.experiment:Trial._no_such_attribute",
        "ray.tune.experiment:Trial.handle_error.no_such_attribute",
    ],
)
def test_a_name_is_not_found(name: str) -> None:
    assert not is_found(name)


@pytest.fixture
def another_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray whose next version has moved two modules."""
    for module in ("ray.train.v2._internal.execution.controller", "ray.tune.execution.tune_controller"):
        monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]


SAID = (
    r"uses \S+[\w. ,]+, which the installed Ray [\d.]+ does not have. Forebay was tested with Ray 2.56 to 2.60. "
    r"Run: pip install 'ray\[data,default,train,tune\]>=2.56,<2.61'$"
)


@pytest.mark.usefixtures("another_ray")
def test_a_missing_name_is_refused_before_a_job_starts() -> None:
    with pytest.raises(UnsupportedRay, match=f"^driver='ray' {SAID}") as raised:
        named_driver("ray")
    assert raised.value.version == ray.__version__
    assert raised.value.missing == ["ray.train.v2._internal.execution.controller.TrainController.worker_group_cls"]
    with pytest.raises(UnsupportedRay, match=rf"^run_sweep {SAID}") as raised:
        check_ray(SWEEP)
    assert "and 6 more" in str(raised.value)
    check_ray()  # what others use is there


def test_a_session_needs_what_everything_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_names, "PRIVATE_NAMES", {EVERYTHING: ("ray._private.state:state.moved",)})
    with pytest.raises(UnsupportedRay, match=r"^Forebay on Ray uses ray._private.state.state.moved"), ray_session(1):
        pass
    assert not ray.is_initialized()


def test_an_import_that_fails_names_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError) as raised:
        from ray.train import NoSuchConfig  # noqa: F401
    assert "fb.run_sweep uses ray.train.NoSuchConfig, which" in str(missing_package(raised.value, "fb.run_sweep"))
    with pytest.raises(ImportError) as raised:
        import ray.no_such_module  # noqa: F401
    assert "fb.run_sweep uses ray.no_such_module, which" in str(missing_package(raised.value, "fb.run_sweep"))
    assert isinstance(missing_package(ModuleNotFoundError(name="ray"), "This"), MissingPackage)
    assert missing_package(ImportError("Install grpcio first."), "This") is None
    assert missing_package(ImportError("cannot import name 'x' from 'y'", name="y"), "This") is None


def test_the_extra_requires_the_tested_range() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (required,) = [line for line in extras["ray"] if line.startswith("ray")]
    assert f"pip install '{required}'" in str(unsupported_ray("This", ["ray.gone"]))
    numbers = tuple(tuple(map(int, version.split("."))) for version in (TESTED_RAY[0], ray.__version__, TESTED_RAY[1]))
    assert numbers[0] <= numbers[1][:2] <= numbers[2]


LOST = """
import os, sys
from forebay.ray_cluster.private_names import check_ray
check_ray()
from ray._private.worker import print_to_stdstream
for line in {lines!r}:
    print_to_stdstream({{"lines": [line], "pid": "raylet", "ip": "", "job": "", "is_err": False}}, False)
print("RAY_DEDUP_LOGS_SKIP_REGEX" in os.environ)
"""
LOG = "Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user"
DEAD = "The node with node id: 1e4f74 has been marked dead."
PRINTED = "my own line: Raylet is terminated. Termination is unexpected."


@pytest.mark.parametrize("given", ["", "my own"])
def test_a_driver_does_not_print_the_log_of_a_lost_raylet_unless_its_user_says_what_to_skip(given: str) -> None:
    variables = {**os.environ, **({"RAY_DEDUP_LOGS_SKIP_REGEX": given} if given else {})}
    code = LOST.format(lines=[f"{LOG}\n    [state-dump] 1", DEAD, PRINTED])
    said = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert DEAD in said and (PRINTED in said) != bool(given) and (f"{LOG}\n    [state" in said) == bool(given)
    assert said.rstrip().endswith(str(bool(given))), "no variable is left behind"
