"""Packages of the extras of pyproject.toml.

They are imported and checked here. Errors have the pip line for what is missing or old.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from forebay.errors import MissingPackage, UnsupportedRay


class ExtraPackage(NamedTuple):
    """How a package is installed.

    The extra that installs it, its least version, other packages that do as well, and a line that installs it.
    """

    extra: str
    minimum: str
    instead: tuple[str, ...] = ()
    install: str = ""


PACKAGES = {
    "accelerate": ExtraPackage("llm", "1.15"),
    "bitsandbytes": ExtraPackage("qlora", "0.50"),
    "boto3": ExtraPackage("s3", "1.36"),
    "comet_ml": ExtraPackage("comet", "3.49"),
    "datasets": ExtraPackage("hf-data", "4"),
    "deepspeed": ExtraPackage(
        # Builds for the PyTorch that is there. Without --no-build-isolation, pip would download another one.
        "deepspeed",
        "0.19.8",
        install="pip install --no-build-isolation 'deepspeed>=0.19.8,<0.20'",
    ),
    "deltalake": ExtraPackage("delta", "1.6"),
    "faiss-cpu": ExtraPackage("retrieval", "1.9", ("faiss-gpu", "faiss-gpu-cu12")),
    "google-auth": ExtraPackage("gcs", "2"),
    "hdfs-native": ExtraPackage("hdfs", "0.14.7"),
    "horovod": ExtraPackage(
        "horovod",
        "0.28.1",
        install="`make horovod` in a clone of Forebay, which builds it for the PyTorch that is there, or as "
        "docs/horovod.md describes",
    ),
    "huggingface_hub": ExtraPackage("hf", "1"),
    "jsonschema": ExtraPackage("score", "4.20"),
    "kubernetes": ExtraPackage("deploy", "31"),
    "liger-kernel": ExtraPackage("liger", "0.8"),
    "lightning": ExtraPackage("lightning", "2.5"),
    "llguidance": ExtraPackage("score", "1.3"),
    "lm_eval": ExtraPackage("lm-eval", "0.4.13"),
    "mlflow-skinny": ExtraPackage("mlflow", "3", ("mlflow",)),
    "openai": ExtraPackage("score", "1.60"),
    "optuna": ExtraPackage("sweep", "4"),
    "pandas": ExtraPackage("ray", "2.2"),
    "peft": ExtraPackage("llm", "0.18"),
    "pillow": ExtraPackage("image", "12.1.1"),
    "pyiceberg": ExtraPackage("iceberg", "0.12"),
    "ray": ExtraPackage("ray", "2.56"),
    "requests": ExtraPackage("gcs", "2.32.4"),
    "safetensors": ExtraPackage("llm", "0.4"),
    "tensorboard": ExtraPackage("tensorboard", "2.15"),
    "transformers": ExtraPackage("llm", "5.16.1"),
    "wandb": ExtraPackage("wandb", "0.31"),
}
"""Least versions in pyproject.toml, by the name of the distribution."""
TESTED_RAY = ("2.56", "2.60")
"""Oldest and newest minor version of Ray on which drivers and sweeps were tested (ADR 0109)."""


@contextmanager
def extra_package(package: str, what: str, install: str = "") -> Iterator[None]:
    """Import modules of `package` in the block.

    `what` needs it: the beginning of the error.

    `install` is the line that installs it, by default the line of its extra.

    Raises:
        MissingPackage: The package is missing or too old, or its import fails.
    """
    validate_version(package, what, install)
    try:
        yield
    except ImportError as error:
        raise _missing(package, what, f" ({error})", install) from error


def require_package(package: str, module: str, what: str) -> None:
    """Check that `module` is there, without importing it.

    It is of `package`. Raises as `extra_package`.
    """
    if importlib.util.find_spec(module) is None:
        raise _missing(package, what, ", which is not installed")
    validate_version(package, what)


def validate_version(package: str, what: str, install: str = "") -> None:
    """Raise `MissingPackage` if `package` is too old."""
    if (error := _too_old(package, what, install)) is not None:
        raise error


def validate_extra(extra: str, what: str) -> None:
    """Raise `MissingPackage` if a package of `extra` is too old."""
    for package, needed in PACKAGES.items():
        if needed.extra == extra:
            validate_version(package, what)


def missing_package(error: ImportError, what: str) -> MissingPackage | UnsupportedRay | None:
    """Error with the pip line for `what`.

    Its import failed at a package of an extra. None for any other module.
    """
    package = (error.name or "").partition(".")[0]
    if package not in PACKAGES:
        return None
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return _missing(package, what, ", which is not installed")
    return _too_old(package, what) or (unsupported_ray(what, [_missing_name(error)]) if package == "ray" else None)


def unsupported_ray(what: str, missing: Sequence[str]) -> UnsupportedRay:
    """Error for names of Ray that are not installed.

    `what` uses them.
    """
    version, (oldest, newest) = _version("ray"), TESTED_RAY
    major, _, minor = newest.partition(".")
    names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return UnsupportedRay(
        f"{what} uses {names}, which the installed Ray {version} does not have. Forebay was tested with Ray {oldest} "
        f"to {newest}. Run: pip install 'ray[data,default,train,tune]>={oldest},<{major}.{int(minor) + 1}'",
        version=version,
        missing=list(missing),
    )


def _missing_name(error: ImportError) -> str:
    """Module or name that could not be imported."""
    # Python 3.11 has the module as an attribute, and the name in it only in the text.
    name = "" if isinstance(error, ModuleNotFoundError) else str(error).partition("'")[2].partition("'")[0]
    return f"{error.name}.{name}".rstrip(".")


def _missing(package: str, what: str, why: str, install: str = "") -> MissingPackage:
    return MissingPackage(
        f"{what} needs the package {package}{why}. Run: {install or _install(package)}", package=package
    )


def _too_old(package: str, what: str, install: str = "") -> MissingPackage | None:
    minimum, found = PACKAGES[package].minimum, _version(package)
    if found is None or _release(found) >= _release(minimum):
        return None
    return MissingPackage(
        f"{what} needs the package {package} from version {minimum} on, and {found} is installed. Run: "
        f"{install or _install(package, upgrade=True)}",
        package=package,
        found=found,
        minimum=minimum,
    )


def _install(package: str, *, upgrade: bool = False) -> str:
    needed = PACKAGES[package]
    return needed.install or f"pip install {'--upgrade ' if upgrade else ''}'forebay[{needed.extra}]'"


def _version(package: str) -> str | None:
    for name in (package, *PACKAGES[package].instead):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _release(version: str) -> tuple[int, ...]:
    """Numbers of a version without zeros at its end.

    >>> _release("2.60.0rc1+cpu"), _release("5.16.1")
    ((2, 60), (5, 16, 1))
    """
    numbers = re.match(r"\d+(\.\d+)*", version)
    found = [int(number) for number in numbers[0].split(".")] if numbers else [0]
    while found and not found[-1]:
        found.pop()
    return tuple(found)
