"""Build Horovod's wheel for the installed PyTorch, keep it for the next time, and install it.

    python scripts/build_horovod.py [--wheel-only] [--or-skip]

Needs pip, PyTorch, a C++ compiler and make, but nothing of Forebay. The wheel is in
`${XDG_CACHE_HOME:-~/.cache}/forebay/wheels`, in a folder named after everything it depends on. So another clone
or virtual environment with the same Python and PyTorch takes it from there.

Horovod 0.28.1 sets C++14, but the headers of PyTorch 2.13 need C++20. So the compiler is called through a wrapper that
swaps `-std`. Its gloo is patched. For GPUs set `HOROVOD_GPU_OPERATIONS=NCCL`, as Horovod's installation guide says.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HOROVOD = "0.28.1"
PASSED_ON = ("HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_ALLREDUCE", "HOROVOD_GPU_BROADCAST", "HOROVOD_NCCL_HOME")
GPU_OPERATIONS = ("nccl", "mpi", "ddl")
LIBRARY = "horovod/torch/mpi_lib_v2"
LINES_SHOWN = 40
PATCHED = "third_party/gloo/gloo/transport/tcp/pair.cc"
# Text of that file, and what stands after it in our build. When a worker dies, gloo wakes those who wait for a message
# that was not begun. But most likely it dies in the middle of a large one: who waits for the rest waits for the whole
# time limit. And a connection with a half-sent message whose buffer is gone, because another connection has failed, is
# never read or written again.
PATCHES = [
    (
        """
      if (!write(op)) {""",
        """
        if (op.getOpcode() == Op::SEND_UNBOUND_BUFFER && !NonOwningPtr<UnboundBuffer>(op.ubuf)) {
          signalException(GLOO_ERROR_MSG("buffer of a half-sent message is gone ", peer_.str()));
          return;
        }""",
    ),
    (
        """
    // which is destructed upon that function returning.
    buf = NonOwningPtr<UnboundBuffer>(op.ubuf);
    if (!buf) {""",
        """
      signalException(GLOO_ERROR_MSG("buffer of a half-read message is gone ", peer_.str()));""",
    ),
    (
        """
    if (op.buf != nullptr) {
      op.buf->signalException(ex);
    }""",
        """
    NonOwningPtr<UnboundBuffer> half_sent(op.ubuf);
    if (half_sent) {
      half_sent->signalException(ex);
    }""",
    ),
    (
        """
void Pair::signalException(std::exception_ptr ex) {
  GLOO_ENFORCE(ex_ == nullptr);""",
        """
  {
    NonOwningPtr<UnboundBuffer> half_read(rx_.ubuf);
    if (half_read) {
      half_read->signalException(ex);
    }
  }""",
    ),
]


def main() -> int:
    """Build or find the wheel, and install it unless that is done. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Build, keep and install Horovod for the PyTorch installed here.")
    parser.add_argument("--wheel-only", action="store_true", help="print the wheel's path, install nothing")
    parser.add_argument("--or-skip", action="store_true", help="leave it without a compiler, or with a build for GPUs")
    options = parser.parse_args()
    if not options.wheel_only and is_served(installed(), any_gpu=options.or_skip):
        return 0
    wheel = kept_wheel(cache_folder())
    if wheel is None and (missing := what_is_missing()):
        say(f"Horovod cannot be built: {missing}.")
        return 0 if options.or_skip else 1
    if wheel is None:
        wheel = build()
    if options.wheel_only:
        print(wheel)
    else:
        say(f"   Installing {wheel}")
        pip("install", "--force-reinstall", "--no-deps", str(wheel))
        # Its requirements are small and do not include PyTorch, so installed packages stay as they are.
        pip("install", str(wheel))
    return 0


def say(line: str) -> None:
    """Print to standard error. stdout has only the wheel's path, for `$(...)`."""
    print(line, file=sys.stderr, flush=True)


def what_is_missing() -> str:
    """Missing requirement of the build. Empty if nothing is missing."""
    if compiler() is None:
        return "there is no C++ compiler (g++, clang++ or $CXX). Install one, for example with apt-get install g++"
    if shutil.which("make") is None:
        return "there is no make"
    return ""


def compiler() -> str | None:
    """Path of a C++ compiler, or None."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def local_version() -> str:
    """Horovod's version with that of PyTorch after the `+`: no wheel of an index sorts above it."""
    torch = "".join(sign if sign.isalnum() else "." for sign in version("torch"))
    return f"{HOROVOD}+torch{torch}.patch1{_gpu_text()}"


def is_served(found: str | None, *, any_gpu: bool) -> bool:
    """Whether the Horovod of version `found` is good enough. With `any_gpu`, also one built for GPUs without being
    asked.
    """
    if found is None or not any_gpu:
        return found == local_version()
    return re.fullmatch(rf"{re.escape(local_version())}(\.({'|'.join(GPU_OPERATIONS)}))*", found) is not None


def _gpu_text() -> str:
    return "".join(f".{os.environ[name].lower()}" for name in PASSED_ON[:3] if os.environ.get(name))


def installed() -> str | None:
    """Version of the installed Horovod, or None."""
    try:
        return version("horovod")
    except PackageNotFoundError:
        return None


def cache_folder() -> Path:
    """Folder of the wheel for this Python, PyTorch and platform."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    libc = "-".join(platform.libc_ver()).strip("-") or "libc"
    place = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}-{libc}".replace(".", "_")
    return Path(home) / "forebay" / "wheels" / f"horovod-{local_version()}-{place}".replace("+", "-")


def kept_wheel(folder: Path) -> Path | None:
    """Wheel in `folder`, or None."""
    return next(iter(sorted(folder.glob("*.whl"))), None)


def build() -> Path:
    """Wheel, built unless another process has just built it. An interrupted build leaves no wheel behind."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder / ".lock"):
        wheel = kept_wheel(folder)
        if wheel is not None:
            return wheel
        for left in folder.glob("building-*"):  # Left by an interrupted build: this process holds its lock now.
            shutil.rmtree(left)
        # Horovod's CMake files use their folder's path as a regular expression.
        is_plain = re.fullmatch(r"[\w./-]*", str(folder)) is not None
        with tempfile.TemporaryDirectory(prefix="building-", dir=folder if is_plain else None) as scratch:
            made = _build_in(Path(scratch), folder / "build.log")
            copied = Path(shutil.copy(made, folder / "wheel.part"))
            # A rename within one folder: the wheel is there completely or not at all.
            return copied.rename(folder / made.name)


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock at `path`. The kernel releases it however this process ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("   Waiting for another build of the same wheel")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_in(scratch: Path, log: Path) -> Path:
    tools = scratch / "tools"
    say(f"   Building Horovod {HOROVOD} for PyTorch {version('torch')} (2-3 minutes on 2 cores; log: {log})")
    # In a folder beside the environment, not in it. CMake 4 refuses files as old as Horovod's.
    wanted = ["setuptools>=77", "wheel", "packaging", *([] if shutil.which("cmake") else ["cmake>=3.18,<4"])]
    pip("install", "--target", str(tools), *wanted)
    # Without build isolation: an isolated build would not see the installed PyTorch and would fetch another.
    alone = ["--no-deps", "--no-build-isolation", "--no-cache-dir"]
    environment = _environment(scratch, tools)
    source = scratch / "source"
    fetched = ["--no-binary", "horovod", "--dest", str(source), f"horovod=={HOROVOD}"]
    pip("download", *alone, *fetched, environment=environment)
    [archive] = source.iterdir()
    with tarfile.open(archive) as parts:
        parts.extractall(source, filter="data")
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    patch(folder)
    with log.open("w") as lines:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "-v",
                *alone,
                "--wheel-dir",
                str(scratch),
                str(folder),
            ],
            # Set only now: pip refuses a source whose version differs from the one it requested from the index.
            env=environment | {"HOROVOD_LOCAL_VERSION": local_version().partition("+")[2]},
            stdout=lines,
            stderr=subprocess.STDOUT,
            check=False,
        )
    wheel = kept_wheel(scratch)
    if done.returncode != 0 or wheel is None or not has_library(wheel):
        say("\n".join(log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]))
        raise SystemExit(f"Horovod was not built; the last lines of {log} are above.")
    return wheel


def patch(source: Path) -> None:
    """Apply `PATCHES` to Horovod's source in a folder."""
    text = (source / PATCHED).read_text()
    for before, added in PATCHES:
        if before not in text:
            raise SystemExit(f"{PATCHED} is not that of Horovod {HOROVOD}: it has no {before!r}.")
        text = text.replace(before, before + added)
    (source / PATCHED).write_text(text)


def has_library(wheel: Path) -> bool:
    """Whether the wheel has a compiled library: Horovod's setup skips a framework that it could not build for."""
    with zipfile.ZipFile(wheel) as parts:
        return any(name.startswith(LIBRARY) and name.endswith(".so") for name in parts.namelist())


def _environment(scratch: Path, tools: Path) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    return {
        **os.environ,
        "CXX": str(_wrapped_compiler(scratch)),
        "PYTHONPATH": str(tools),
        "PATH": os.pathsep.join([str(tools / "bin"), os.environ.get("PATH", os.defpath)]),
        "TMPDIR": str(scratch),  # pip builds in this folder, so nothing is left in /tmp either.
        "MAKEFLAGS": f"-j{min(cores, 8)}",  # setup.py's own -j8 takes a gigabyte per job.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # If the system's CMake is 4 or newer.
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }


def _wrapped_compiler(scratch: Path) -> Path:
    found = compiler()
    assert found is not None, "call what_is_missing() first"
    wrapper = scratch / "c++"
    swap = (
        'for flag; do shift; case "$flag" in -g) continue;; -std=*14) flag=-std=c++20;; esac; set -- "$@" "$flag"; done'
    )
    wrapper.write_text(f'#!/bin/sh\n{swap}\nexec {shlex.quote(found)} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    return wrapper


def pip(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Run this interpreter's pip. Raises `CalledProcessError` if it fails."""
    command = [sys.executable, "-m", "pip", *arguments, "-qq", "--progress-bar", "off", "--disable-pip-version-check"]
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)  # noqa: S603 - our own interpreter


if __name__ == "__main__":
    sys.exit(main())
