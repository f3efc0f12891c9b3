"""Kernels are compiled once on a machine, also if the compiler is killed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.data.kernels import calls, loading
from forebay.data.kernels.kernel_files import KernelFiles, kernel_files
from forebay.data.parquet import page_kernels

MODULE = """
from numba import int64
from forebay.data.kernels.compiler import kernel, part
def _half(x):
    return x // 2
def _first(x):
    return half(x) + 1
def _second(x):
    return half(x) + half(x + 2)
half = part(int64(int64))(_half)
first = kernel(int64(int64))(_first)
second = kernel(int64(int64))(_second)
"""
PROGRAM = """
import importlib
import sys
from forebay.data.kernels import compiler, kernel, loading
loading._MOST_HELPERS, compile_kernel = 0, compiler.compile_kernel
def counted(function):
    print("compiled", function.py_func.__name__)
    compile_kernel(function)
compiler.compile_kernel = counted
module = importlib.import_module(sys.argv[1])
kernels = [kernel.Kernel(lambda: module, name) for name in sys.argv[2:]]
kernel.load(kernels)
print(*(each.call(40) for each in kernels))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module with two small kernels, that this process and those that it starts can import."""
    name = f"kernels_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return name


def _start(code: str, *arguments: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


def _load(files: KernelFiles, module: str, *names: str) -> list[int]:
    places = [(partial(import_module, module), name) for name in names]
    with ExitStack() as undo:
        found = loading._Loading(files, places, undo, is_helper=True).run()
    return [each(40) for each in found]


def test_processes_that_start_together_compile_each_kernel_once(module: str, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    orders = [("first", "second"), ("second", "first"), ("first", "second")]
    running = [_start(PROGRAM, module, *names, folder=folder) for names in orders]
    said = [each.communicate()[0].splitlines() for each in running]
    assert sorted(line for lines in said for line in lines[:-1]) == ["compiled _first", "compiled _second"]
    assert [lines[-1] for lines in said] == ["21 41", "41 21", "21 41"]
    assert sorted(each.suffix for each in folder.iterdir()) == [".nbc", ".nbc", ".nbi", ".nbi", ".sum", ".sum"]


def test_a_helper_compiles_for_others(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    assert loading._helper([(partial(import_module, module), "first")]).wait() == 0
    assert [each.name.split("-")[0] for each in (tmp_path / "kept").glob("*.sum")] == ["first"]
    monkeypatch.setattr("forebay.data.kernels.compiler.compile_kernel", None)
    assert _load(kernel_files.__wrapped__(), module, "first") == [21]


def test_a_killed_compiler_does_not_block_others(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from forebay.data.kernels.kernel_files import KernelFiles\n"
        "with KernelFiles((pathlib.Path(sys.argv[1]),)).claim('first') as is_mine:\n"
        "    print(is_mine, flush=True); time.sleep(60)"
    )
    other, files = _start(code, str(tmp_path), folder=tmp_path), KernelFiles((tmp_path,))
    assert other.stdout and other.stdout.readline() == "True\n"
    with files.claim("first") as is_mine:
        assert not is_mine
    other.kill()
    other.communicate()
    with files.claim("first") as is_mine:
        assert is_mine


def test_a_stopped_compiler_is_not_waited_for_without_end(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_MOST_WAIT_S", 0.1)
    monkeypatch.setattr(KernelFiles, "_lock", lambda *_: None)  # all is claimed
    assert _load(KernelFiles((tmp_path,)), module, "first") == [21]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_folder_that_cannot_be_written_is_said_once(
    module: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    if is_full:
        monkeypatch.setattr("tempfile.mkstemp", _no_room)
    else:
        folder.touch()  # a file: not even root can make a folder there
    files = KernelFiles((folder,))
    with caplog.at_level(logging.WARNING):
        assert _load(files, module, "first", "second") == [21, 41]
    assert [str(folder) in each.getMessage() for each in caplog.records] == [True]
    assert files.target is None


def _no_room(**_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_read_only_folder_is_read(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, own = tmp_path / "image", tmp_path / "own"
    assert _start(PROGRAM, module, "first", folder=image).wait() == 0
    monkeypatch.setattr("forebay.data.kernels.compiler.compile_kernel", None)
    monkeypatch.setattr("forebay.data.kernels.kernel_files._refusal", lambda folder: "read-only" * (folder == image))
    assert _load(KernelFiles((image, own)), module, "first") == [21]
    assert not own.exists()


def _write(files: KernelFiles, name: str) -> None:
    files.write(name, lambda folder: (folder / f"{name}.1.nbc").write_bytes(b"machine code") and None)


def test_damaged_files_are_compiled_again(tmp_path: Path) -> None:
    files = KernelFiles((tmp_path,))
    _write(files, "first-0")
    assert files.find("first-0") == tmp_path and files.find("second-0") is None
    for damaged in (b"", b"machine cod", b"machine codf"):
        (tmp_path / "first-0.1.nbc").write_bytes(damaged)
        assert files.find("first-0") is None
    _write(files, "first-0")
    assert files.find("first-0") == tmp_path
    (tmp_path / "first-0.sum").unlink()  # killed before the end
    assert files.find("first-0") is None


def test_what_earlier_versions_left_is_removed(tmp_path: Path) -> None:
    files = KernelFiles((tmp_path,))
    for name in ("first-0", "first-1", "second-0"):
        _write(files, name)
        for each in tmp_path.glob(f"{name}*") if name != "first-1" else ():
            os.utime(each, (0, 0))
    _write(files, "first-2")
    assert {each.name.partition(".")[0] for each in tmp_path.iterdir()} == {"first-1", "first-2", "second-0"}


def test_without_a_home_there_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: Path(os.devnull))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.devnull)
    files = kernel_files.__wrapped__()
    assert files.target == tmp_path / f"forebay-kernels-{os.geteuid()}" and files.target.stat().st_mode & 0o77 == 0


def test_a_child_forked_during_a_compilation_can_load() -> None:
    code = (
        "import os, threading, time; from forebay.data.kernels import loading\n"
        "def compile():\n"
        "    with loading._lock:\n"
        "        has_begun.set(); time.sleep(0.3)\n"
        "has_begun = threading.Event(); threading.Thread(target=compile).start(); has_begun.wait()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(not loading._lock.acquire(timeout=10))\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not loading._lock.acquire(timeout=10))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_long_compilation_says_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = KernelFiles((tmp_path,))
    with loading._progress(3, files, 0.0):
        while "..." not in (said := capsys.readouterr().err):
            pass
    assert said.startswith("forebay: compiling 3 kernels") and str(tmp_path) in said
    assert capsys.readouterr().err == "forebay: compiled in 0 s\n"
    with loading._progress(3, files, 10.0):
        pass
    assert capsys.readouterr().err == ""


def test_a_job_of_plain_numbers_needs_five_kernels() -> None:
    assert [each.name for each in page_kernels._OF_ALL_JOBS] == [
        "decode_columns",
        "read_codecs",
        "pack_columns_4",
        "gather_arrays",
        "order_lanes",
    ]


def test_working_memory_is_as_large_as_the_kernels_need() -> None:
    from forebay.data.kernels.orders import LANE_WORDS
    from forebay.data.parquet.list_pages import LIST_WORK
    from forebay.data.parquet.pages import ITEM_BYTES, TABLE, TABLE_BYTES

    assert calls._LANE_WORDS >= LANE_WORDS and page_kernels._WORK_WORDS >= LIST_WORK
    assert tuple(page_kernels._TABLE_AT + k for k in range(3)) == (ITEM_BYTES, TABLE, TABLE_BYTES)


def test_the_digest_of_a_kernel_covers_its_parts() -> None:
    from forebay.data.kernels import compiler, loops, orders
    from forebay.data.parquet import list_pages, pages

    kernels = (orders.merge, orders.order_lanes, pages.decode_columns, loops.pack_columns_4, loops.pack_columns_8)
    assert len({compiler.digest(each) for each in kernels}) == len(kernels)
    modules = {each.py_func.__module__.rpartition(".")[2] for each in compiler._reached(list_pages.decode_lists)}
    assert modules == {"list_pages", "pages", "page_headers", "snappy"}


def test_a_call_with_other_types_is_an_error() -> None:
    with pytest.raises(TypeError, match="No matching definition"):
        calls.gather_lists(0, np.zeros((1, 2), np.float32), np.zeros((1, 2, 0), np.int64))  # type: ignore[arg-type]


@pytest.mark.variation
def test_the_first_batch_of_plain_numbers_compiles_what_it_needs(tmp_path: Path) -> None:
    folder, data = tmp_path / "kept", tmp_path / "clicks"
    data.mkdir()
    columns = {name: np.arange(1000, dtype=np.float32) for name in ("age", "price")}
    pq.write_table(pa.table({**columns, "clicked": np.arange(1000) % 2}), data / "a.parquet")
    code = (
        "import sys, forebay as fb\n"
        "transform = fb.Transform(x=fb.Dense(['age', 'price']), label=fb.Label('clicked'))\n"
        "with fb.Loader(fb.build_plan(fb.scan(sys.argv[1])), transform, global_batch=100) as loader:\n"
        "    print(next(iter(loader)).num_rows)"
    )
    said, _ = _start(code, str(data), folder=folder).communicate()
    needed = sorted(each.name for each in page_kernels._OF_ALL_JOBS)
    assert said == "100\n" and sorted(each.name.split("-")[0] for each in folder.glob("*.sum")) == needed
