"""Code, packages, config and data of a run's start."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import os
import platform
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from forebay.data.loader.data import Data
from forebay.storage.json_file import Fact
from forebay.training.job.job import Job
from forebay.training.runs.job_facts import job_facts, public_fact
from forebay.training.runs.timeline.timeline import StartOrigin

_ID_DIGITS = 12
_OF_TESTS = re.compile(r"extra == .test.")
_REF = re.compile(r"ref: (\S+)")


def origin_of(job: Job) -> StartOrigin:
    """StartOrigin of a start of `job` in this process."""
    resources = job.resources
    config = job_facts(job) | {"job.strategy": job.strategy, "job.cpus": resources.cpus, "job.gpus": resources.gpus}
    return StartOrigin(
        config=config,
        data=data_facts(job.data),
        code=code_facts(job.train),
        packages=installed_packages(),
        machine={"host": socket.gethostname(), "cpus": os.cpu_count(), "system": _system()},
    )


def data_facts(data: Data) -> dict[str, Fact]:
    """Return facts of the plan and its datasets.

    Each dataset is under its name if there are several.
    """
    plan = data.plan
    found: dict[str, Fact] = {"plan": plan.id[:_ID_DIGITS], "rows": plan.num_rows, "lanes": plan.lanes}
    for number, manifest in enumerate(plan.manifests):
        before = f"{plan.names[number]}." if plan.names else ""
        own: dict[str, Any] = {
            "source": manifest.root or manifest.files[0].path,
            "manifest": manifest.id[:_ID_DIGITS],
            "files": len(manifest.files),
            "row_groups": len(manifest),
            "rows_of_files": int(manifest.rows.sum()),
            "bytes": int(manifest.bytes.sum()),
            "columns": len(manifest.columns),
        }
        if kept := manifest.kept:
            counts = ("deleted_rows", "filtered_rows", "skipped_rows", "rejected_rows")
            own |= {"where": kept.where, "rules": ", ".join(kept.rules)}
            own |= {name: getattr(kept, name) for name in counts}
        found |= {f"{before}{name}": public_fact(name, value) for name, value in own.items()}
    return found


def code_facts(train: Callable[..., Any]) -> dict[str, Fact]:
    """Return file, SHA-256 and commit of the train function.

    The hash is of the file, or of the source. The commit is checked out there.
    """
    while isinstance(train, partial):
        train = train.func
    found: dict[str, Fact] = {"function": getattr(train, "__qualname__", type(train).__qualname__)}
    try:
        path = Path(inspect.getsourcefile(train) or "")
        text = path.read_bytes() if path.is_file() else inspect.getsource(train).encode()
    except (OSError, TypeError):  # built in, or typed into a process that keeps no source
        return found
    commit = commit_of(path.parent) if path.is_file() else None
    found |= {"file": path.name, "sha256": hashlib.sha256(text).hexdigest()[:_ID_DIGITS]}
    return found | ({"commit": commit[:_ID_DIGITS]} if commit else {})


def commit_of(folder: Path) -> str | None:
    """Return the checked-out Git commit around `folder`.

    Read from the files of the repository. None without one. No process is started: a run may start where `git` is not
    installed.
    """
    root = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)
    if root is None:
        return None
    try:
        git = root / ".git"
        if git.is_file():  # a second working tree
            git = root / git.read_text().partition("gitdir: ")[2].strip()
        head = (git / "HEAD").read_text().strip()
        ref = _REF.fullmatch(head)
        return head if ref is None else _ref(git, ref[1])
    except OSError:
        return None


def _ref(git: Path, name: str) -> str | None:
    shared = git / "commondir"
    home = git / shared.read_text().strip() if shared.is_file() else git
    loose = home / name
    if loose.is_file():
        return loose.read_text().strip()
    packed = (home / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)


@functools.cache
def installed_packages() -> dict[str, str]:
    """Return the versions of Forebay and its dependencies.

    Of each installed package that it or one of its extras requires, except for tests. Only Python's where Forebay is
    imported from its source folder, without being installed.
    """
    versions = {"python": platform.python_version()}
    try:
        required = importlib.metadata.requires("forebay") or []
    except importlib.metadata.PackageNotFoundError:
        return versions
    used = [line for line in required if not _OF_TESTS.search(line)]
    names = sorted({re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in used})
    found = {**versions, "forebay": importlib.metadata.version("forebay")}
    for name in names:
        try:
            found.setdefault(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def _system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"
