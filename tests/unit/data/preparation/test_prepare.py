from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.manifest.prepared import SEAL, list_prepared, remove_prepared
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation import external_sort, parts
from forebay.data.preparation import prepare as preparing
from forebay.errors import (
    InvalidOption,
    MixedSchemas,
    NoFiles,
    SourceChanged,
    Unfingerprintable,
    WriteFailed,
)

Contents = Callable[[str], dict[str, bytes]]
HOOK = object()


def cheap(root: Path, most: float = 1e9, rows: int = 97) -> Iterator[pa.Table]:
    for file in sorted(root.glob("*.parquet")):
        table = pq.read_table(file)
        table = table.filter(pc.less(table["price"], most))
        for start in range(0, table.num_rows, rows):
            yield table.slice(start, rows)


def read_all(prepared: fb.Prepared) -> pa.Table:
    reader = RowGroupReader(prepared.manifest)
    return pa.concat_tables(reader.read(index) for index in range(len(prepared.manifest)))


def make(clicks: Path, into: Path, **options: object) -> fb.Prepared:
    given = {"key": "row", "row_group_rows": 64, "inputs": [clicks]} | options
    return fb.prepare(cheap, root=clicks, into=str(into), **given)  # type: ignore[arg-type]


def test_rows_are_cut_in_order_of_the_key(clicks: Path, tmp_path: Path) -> None:
    prepared = make(
        clicks,
        tmp_path / "into",
        fit=[fb.Vocabulary("user"), fb.preparation.Moments("price"), fb.preparation.Quantiles("price")],
    )
    assert prepared.rows == prepared.manifest.num_rows == 1000
    assert prepared.manifest.rows.tolist() == [64] * 15 + [40]
    assert [len(file.rows) for file in prepared.files] == [4, 4, 4, 4]
    assert read_all(prepared)["row"].to_pylist() == list(range(1000))
    assert prepared.statistics["price"].mean == 249.75
    assert prepared.statistics["price"].quantile(0.5) == 249.5
    alone = make(clicks, tmp_path / "into", fit=fb.preparation.Quantiles("price")).statistics["price"]
    assert alone == prepared.statistics["price"], "quantiles come with the moments of their column"
    assert len(prepared.vocabularies["user"]) == 17
    assert prepared.vocabularies == fb.Vocabulary("user").fit(prepared.manifest)


@pytest.mark.parametrize("key", ["row", ("user", "row")])
def test_files_depend_on_rows_only(
    clicks: Path, tmp_path: Path, bytes_of: Contents, monkeypatch: pytest.MonkeyPatch, key: str | tuple[str, ...]
) -> None:
    first = make(clicks, tmp_path / "a", key=key)
    monkeypatch.setattr(external_sort, "RUN_BYTES", 3000)
    second = make(clicks, tmp_path / "b", key=key, rows=13)
    assert bytes_of(first.folder) == bytes_of(second.folder)
    assert first.manifest.id == second.manifest.id
    assert first.fingerprint != second.fingerprint


def test_a_second_call_opens_no_source(
    clicks: Path, tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(clicks, tmp_path / "into")
    monkeypatch.setattr(preparing, "function_tables", None)  # what calls the function
    second = make(clicks, tmp_path / "into")
    assert second.manifest == first.manifest
    assert second.statistics == first.statistics
    assert "reused" in messages[-1] and len(messages) == 3


def test_the_log_names_what_changed(clicks: Path, tmp_path: Path, messages: list[str]) -> None:
    into = tmp_path / "into"
    make(clicks, into)
    assert "(for the first time)" in messages[0]
    make(clicks, into, most=300.0)
    assert messages[-2].endswith("argument most)")
    os.utime(clicks / "c1.parquet", ns=(1, 1))
    make(clicks, into)
    assert messages[-2].endswith(f"input {clicks}/c1.parquet)")
    make(clicks, into, row_group_rows=65)
    assert messages[-2].endswith("option row_group_rows)")


def test_rows_to_fit_on_are_compared_to_the_last_value(clicks: Path, tmp_path: Path) -> None:
    def mean(rows: list[int]) -> float:
        chosen = pc.field("row").isin(rows)
        return (
            make(clicks, tmp_path / "into", fit=fb.preparation.Moments("price"), fit_on=chosen).statistics["price"].mean
        )

    # The text of an expression leaves out the middle of a long list.
    assert mean(list(range(100))) == 24.75
    assert mean([*range(50), 650, *range(51, 100)]) == 27.75


def test_a_changed_constant_in_the_function_is_noticed(tmp_path: Path, clicks: Path) -> None:
    code = "import pyarrow.parquet as pq\ndef features(root):\n    yield pq.read_table(root).slice(0, {})\n"
    script = (
        "import sys, logging\n"
        "logging.basicConfig(level='INFO', format='%(message)s')\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import forebay as fb, mine\n"
        "print(fb.prepare(mine.features, root=sys.argv[2], inputs=[sys.argv[2]], into=sys.argv[3]).rows)"
    )
    said = []
    for rows in (10, 10, 20):
        (tmp_path / "mine.py").write_text(code.format(rows))
        command = [sys.executable, "-B", "-c", script, str(tmp_path), str(clicks), str(tmp_path / "into")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said.append((int(done.stdout), done.stderr))
    assert [rows for rows, _ in said] == [10, 10, 20]
    assert "features: reused" in said[1][1]
    assert "the function)" in said[2][1]


def test_a_manifest_as_an_argument_is_the_input(clicks: Path, tmp_path: Path) -> None:
    def copied(data: fb.Manifest) -> Iterator[pa.Table]:
        reader = RowGroupReader(data)
        return (reader.read(index) for index in range(len(data)))

    into = str(tmp_path / "into")
    first = fb.prepare(copied, data=fb.scan(clicks), into=into, version="1")
    os.utime(clicks / "c1.parquet", ns=(1, 1))
    second = fb.prepare(copied, data=fb.scan(clicks), into=into, version="1")
    # Of the same time, but another file.
    shutil.copy2(clicks / "c1.parquet", clicks / "new")
    (clicks / "new").replace(clicks / "c1.parquet")
    third = fb.prepare(copied, data=fb.scan(clicks), into=into, version="1")
    assert len({first.folder, second.folder, third.folder}) == 3


def test_what_was_fitted_on_a_prepared_argument_counts(clicks: Path, tmp_path: Path) -> None:
    def centred(first: fb.Prepared) -> pa.Table:
        return pa.table({"mean": [first.statistics["price"].mean]})

    means = {}
    for chosen in (pc.field("row") < 100, pc.field("row") < 200):
        first = make(clicks, tmp_path / "first", fit=fb.preparation.Moments("price"), fit_on=chosen)
        again = fb.Prepared.load(first.folder)
        made = [fb.prepare(centred, first=each, into=str(tmp_path / "second")) for each in (first, again)]
        assert made[0].folder == made[1].folder
        means[first.statistics["price"].mean] = read_all(made[0])["mean"].to_pylist()
    assert means == {24.75: [24.75], 49.75: [49.75]}


def test_nothing_fitted_leaves_the_id_of_the_rows(clicks: Path, tmp_path: Path) -> None:
    prepared = make(clicks, tmp_path / "into")
    assert prepared.content_id == prepared.manifest.id


@pytest.mark.parametrize("beside", [True, False], ids=["beside Parquet", "alone"])
def test_inputs_of_any_suffix_are_noticed(clicks: Path, tmp_path: Path, beside: bool) -> None:
    def named(root: Path) -> pa.Table:
        return pa.table({"name": (root / "names.csv").read_text().split()})

    root = clicks if beside else tmp_path / "texts"
    root.mkdir(exist_ok=True)
    rows = []
    for names in ("a", "a b c"):
        (root / "names.csv").write_text(names)
        rows.append(fb.prepare(named, root=root, inputs=[str(root)], into=str(tmp_path / "into"), version="1").rows)
    assert rows == [1, 3]


def test_a_folder_without_inputs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(NoFiles, match=r"holds no file, or only hidden ones"):
        fb.prepare(cheap, root=tmp_path, inputs=[str(tmp_path)], into=str(tmp_path / "into"))
    with pytest.raises(NoFiles, match=r"Name a file, a folder of them, or a pattern: data/\*\."):
        fb.prepare(cheap, root=tmp_path, inputs=[str(tmp_path / "none")], into=str(tmp_path / "into"))


@pytest.mark.parametrize("how", ["renamed over", "in place", "removed"])
def test_an_input_that_is_replaced_meanwhile_leaves_nothing(clicks: Path, tmp_path: Path, how: str) -> None:
    def reading(root: Path, how: str) -> Iterator[pa.Table]:
        yield pq.read_table(root / "c0.parquet")
        path, facts = root / "c1.parquet", (root / "c1.parquet").stat()
        if how == "renamed over":
            shutil.copy2(path, root / "new")
            (root / "new").replace(path)
        elif how == "in place":
            path.write_bytes(path.read_bytes())
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        else:
            path.unlink()

    into = str(tmp_path / "into")
    with pytest.raises(SourceChanged, match=r"c1\.parquet changed while reading was prepared"):
        fb.prepare(reading, root=clicks, how=how, into=into, inputs=[str(clicks)], version="1")
    assert [found for _, found in list_prepared(into)] == [None]


@pytest.mark.parametrize("how", ["folder", "pattern", "manifest"])
@pytest.mark.parametrize("inner", ["", "/prepared"])
def test_what_was_prepared_is_no_input_of_itself(how: str, inner: str, clicks: Path) -> None:
    def again() -> fb.Prepared:
        into = f"{clicks}{inner}"
        if how == "manifest":
            return fb.prepare(tables_of, data=fb.scan(clicks), into=into, version="1")
        pattern = "/**/*.parquet" if how == "pattern" else ""
        return fb.prepare(lambda: pa.table({"a": [1]}), inputs=[f"{clicks}{pattern}"], into=into, version="1")

    again()
    with pytest.raises(InvalidOption, match=r"lies within the input .*part-000000.* was prepared before"):
        again()


def test_a_preparation_may_continue_another_one_in_its_folder(clicks: Path) -> None:
    into = str(clicks / "_prepared")
    first = fb.prepare(tables_of, data=fb.scan(clicks), into=into, version="1")
    for _ in range(2):
        second = fb.prepare(tables_of, data=first.manifest, into=into, version="2")
        assert second.rows == first.rows == fb.scan(clicks).num_rows
        assert fb.prepare(tables_of, data=fb.scan(clicks), into=into, version="1").folder == first.folder


def tables_of(data: fb.Manifest) -> Iterator[pa.Table]:
    reader = RowGroupReader(data)
    return map(reader.read, range(len(data)))


def test_what_cannot_be_prepared(clicks: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    with pytest.raises(InvalidOption, match="has no known inputs.*inputs="):
        fb.prepare(cheap, root=clicks, into=str(into))
    with pytest.raises(InvalidOption, match="cannot be compared between runs"):
        make(clicks, into, most=object())
    with pytest.raises(NoFiles, match="gave no row"):
        make(clicks, into, most=-1.0)
    with pytest.raises(MixedSchemas, match="table 1 .* Cast each table"):
        fb.prepare(lambda: [pa.table({"a": [1]}), pa.table({"a": ["x"]})], into=str(into), inputs=[], version="1")
    twice = pa.table([[1], [2]], names=["a", "a"])
    with pytest.raises(MixedSchemas, match="table 0 .* two columns 'a'"):
        fb.prepare(lambda: twice, into=str(into), inputs=[], version="1")
    with pytest.raises(InvalidOption, match="row_group_rows=0"):
        make(clicks, into, row_group_rows=0)
    with pytest.raises(InvalidOption, match="gave dict as item 0"):
        fb.prepare(lambda: [{"a": 1}], into=str(into), inputs=[], version="1")
    with pytest.raises(Unfingerprintable, match='Give the preparation version="1"'):
        fb.prepare(lambda: HOOK, into=str(into), inputs=[])
    with pytest.raises(InvalidOption, match="names a column twice"):
        make(clicks, into, key=("row", "row"))
    with pytest.raises(InvalidOption, match="key=None: give the name of a column"):
        make(clicks, into, key=None)
    with pytest.raises(InvalidOption, match="gave NoneType as item 0.* yield pyarrow tables"):
        fb.prepare(lambda: None, into=str(into), inputs=[], version="1")
    with pytest.raises(InvalidOption, match="was given 'clicks'. Give a function"):
        fb.prepare("clicks", into=str(into), inputs=[])  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"cheap needs its argument root, .* Add root=\.\.\."):
        fb.prepare(cheap, into=str(into), inputs=[])
    with pytest.raises(InvalidOption, match=r"key=\{'row'\}: give the name of a column"):
        make(clicks, into, key={"row"})
    with pytest.raises(InvalidOption, match="needs its argument key, .* rename it"):
        fb.prepare(lambda key: [], key="a", into=str(into), inputs=[], version="1")
    assert all(found is None for _, found in list_prepared(str(into)))


@pytest.mark.parametrize(("name", "meant"), [("row_group_row", "row_group_rows"), ("mst", "most")])
def test_an_argument_of_neither_is_refused(clicks: Path, tmp_path: Path, name: str, meant: str) -> None:
    says = rf"{name}= is neither an option of a preparation nor an argument of .*cheap\. Did you mean '{meant}'\?"
    with pytest.raises(InvalidOption, match=says):
        make(clicks, tmp_path / "into", **{name: 1})


def with_most(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        return function(most=50.0, **arguments)

    return call


@with_most
def below_most(most: float, root: Path) -> Iterator[pa.Table]:
    return cheap(root, most)


def test_a_decorator_may_give_arguments_and_an_index_names_columns(clicks: Path, tmp_path: Path) -> None:
    prepared = fb.prepare(
        below_most,
        root=clicks,
        inputs=[str(clicks)],
        key=pd.Index(["row"]),
        into=str(tmp_path),
        version="1",
    )
    assert (0 < prepared.rows < 1000, prepared.key) == (True, ("row",))


def test_a_prepared_copy_that_was_lost_fits_the_cursor(clicks: Path, tmp_path: Path) -> None:
    first = make(clicks, tmp_path / "into")
    plan = fb.build_plan(first.manifest, seed=3)
    remove_prepared(first.folder)
    with pytest.raises(SourceChanged, match="no longer exists"):
        RowGroupReader(first.manifest).read(0)
    second = make(clicks, tmp_path / "into")
    assert fb.build_plan(second.manifest, seed=3).id == plan.id
    assert RowGroupReader(first.manifest).read(0).equals(RowGroupReader(second.manifest).read(0))
    other = make(clicks, tmp_path / "other", most=400.0)
    assert fb.build_plan(other.manifest, seed=3).id != plan.id


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_run_resumes_in_mid_epoch_on_data_that_was_prepared_again(
    clicks: Path, tmp_path: Path, is_cached: bool
) -> None:
    transform = fb.Transform(price=fb.Dense(["price"], dtype="float64"))
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=1 << 26, min_free_bytes=0) if is_cached else None

    def loader() -> fb.Loader:
        plan = fb.build_plan(make(clicks, tmp_path / "into").manifest, seed=3, lanes=4)
        return fb.Loader(plan, transform, cache, global_batch=100, as_numpy=True)

    with loader() as whole:
        expected = [batch["price"][:, 0].tolist() for batch in whole]
    with loader() as first:
        batches = iter(first)
        found = [next(batches)["price"][:, 0].tolist() for _ in range(4)]
        cursor = first.cursor()
    remove_prepared(make(clicks, tmp_path / "into").folder)
    with loader() as second:
        second.seek(cursor)
        found += [batch["price"][:, 0].tolist() for batch in second]
    assert found == expected
    assert sorted(sum(found, [])) == [row * 0.5 for row in range(1000)]


def test_an_unsealed_or_damaged_folder_is_never_read(clicks: Path, tmp_path: Path) -> None:
    prepared = make(clicks, tmp_path / "into")
    seal = Path(prepared.folder) / SEAL
    text = seal.read_text()
    seal.write_text(text.replace('"rows": [64', '"rows": [63', 1))
    with pytest.raises(InvalidOption, match="its files are not those of its manifest"):
        fb.Prepared.load(prepared.folder)
    seal.unlink()
    with pytest.raises(InvalidOption, match=r"has no prepared\.json"):
        fb.Prepared.load(prepared.folder)
    assert [found for _, found in list_prepared(str(tmp_path / "into"))] == [None]


def test_a_seal_that_is_no_file_hides_no_other_dataset(clicks: Path, tmp_path: Path) -> None:
    prepared = make(clicks, tmp_path / "into")
    for name, plant in (("a", Path.mkdir), ("b", os.mkfifo)):
        (tmp_path / "into" / name).mkdir()
        plant(tmp_path / "into" / name / SEAL)
    found = dict(list_prepared(str(tmp_path / "into")))
    assert [Path(folder).name for folder, each in found.items() if each is None] == ["a", "b"]
    known = found[prepared.folder]
    assert known is not None and known.fingerprint == prepared.fingerprint


def test_a_failure_leaves_nothing_that_the_next_call_reads(
    clicks: Path, tmp_path: Path, bytes_of: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = parts.write_atomically
    calls = []

    def full(uri: str, content: bytes) -> None:
        calls.append(uri)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        written(uri, content)

    monkeypatch.setattr(parts, "write_atomically", full)
    with pytest.raises(WriteFailed, match=r"File 2 of the prepared dataset.*No space left on device"):
        make(clicks, tmp_path / "into")
    ((folder, found),) = list_prepared(str(tmp_path / "into"))
    assert found is None and len(bytes_of(folder)) == 2
    (Path(folder) / "part-000099-0123456789abcdef.parquet").write_bytes(b"of another day")
    prepared = make(clicks, tmp_path / "into")
    assert prepared.folder == folder
    assert set(bytes_of(folder)) == {file.path for file in prepared.files}
    assert sorted(path.name for path in Path(folder).iterdir() if path.suffix != ".parquet") == [SEAL]


SLOW = """
import sys, time
from pathlib import Path
import pyarrow.parquet as pq
import forebay as fb

def slow(root):
    Path(sys.argv[3], f"called-{time.time_ns()}").touch()
    for file in sorted(Path(root).glob("*.parquet")):
        for start in range(0, 300, 50):
            yield pq.read_table(file).slice(start, 50)
        print("a file", flush=True)
        time.sleep(float(sys.argv[4]))

prepared = fb.prepare(slow, root=sys.argv[1], inputs=[sys.argv[1]], into=sys.argv[2], version="1", key="row",
                      row_group_rows=32)
print(prepared.manifest.id, prepared.folder, flush=True)
"""


def test_a_killed_process_is_succeeded_by_the_next(
    python: Callable[..., subprocess.Popen[str]], clicks: Path, tmp_path: Path, bytes_of: Contents
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    undisturbed, _ = python(SLOW, clicks, tmp_path / "a", calls, 0).communicate(timeout=60)
    killed = python(SLOW, clicks, tmp_path / "b", calls, 30)
    assert killed.stdout is not None and killed.stdout.readline() == "a file\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert [found for _, found in list_prepared(str(tmp_path / "b"))] == [None]
    again, _ = python(SLOW, clicks, tmp_path / "b", calls, 0).communicate(timeout=60)
    before, after = (said.splitlines()[-1].split() for said in (undisturbed, again))
    assert after[0] == before[0]
    assert bytes_of(after[1]) == bytes_of(before[1])


def test_two_processes_at_once_prepare_once(
    python: Callable[..., subprocess.Popen[str]], clicks: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    started = [python(SLOW, clicks, tmp_path / "into", calls, 0.3) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].splitlines()[-1] for process in started]
    assert said[0] == said[1]
    assert len(list(calls.iterdir())) == 1


def test_a_moved_folder_is_the_same_data_set(clicks: Path, tmp_path: Path) -> None:
    prepared = make(clicks, tmp_path / "into")
    shutil.copytree(prepared.folder, tmp_path / "elsewhere")
    moved = fb.Prepared.load(str(tmp_path / "elsewhere"))
    assert moved.manifest == prepared.manifest
    assert read_all(moved).equals(read_all(prepared))


@pytest.mark.parametrize("kinds", [("string", "string_view"), ("string_view", "large_string")])
@pytest.mark.parametrize("key", [(), ("a",)])
def test_hints_of_arrow_are_no_other_schema(kinds: tuple[str, str], key: tuple[str, ...], tmp_path: Path) -> None:
    tables = [pa.table({"a": pa.array([f"{n}", f"{n + 2}"], parse_type(kind))}) for n, kind in enumerate(kinds)]
    fit, on = fb.Vocabulary("a"), pc.field("a") != "3"
    made = fb.prepare(lambda: tables, into=str(tmp_path), key=key, fit=fit, fit_on=on, inputs=[], version="1")
    assert read_all(made)["a"].to_pylist() == (["0", "1", "2", "3"] if key else ["0", "2", "1", "3"])
    assert made.vocabularies["a"] == ("0", "1", "2")


@pytest.mark.parametrize("kind", ["timestamp[s]", "timestamp[s, tz=Asia/Tokyo]", "time32[s]", "date64[ms]"])
@pytest.mark.parametrize("is_encoded", [False, True])
def test_a_vocabulary_holds_values_as_files_do(kind: str, is_encoded: bool, tmp_path: Path) -> None:
    values = pa.array([0, 86_400_000, None], pa.int64()).cast(pa.timestamp("ms")).cast(pa.date64())
    if kind.startswith("time32"):
        values = pa.array([0, 3600, None], pa.int32()).cast(pa.time32("s"))
    column = values.cast(parse_type(kind))
    table = pa.table({"a": column.dictionary_encode() if is_encoded else column})
    made = fb.prepare(lambda: table, into=str(tmp_path), fit=fb.Vocabulary("a"), inputs=[], version="1")
    assert made.vocabularies == fb.Vocabulary("a").fit(made.manifest)
    ids = fb.Transform(x=fb.Categorical(["a"], vocabulary=made.vocabularies)).apply(read_all(made)).arrays["x"]
    assert ids.tolist() == [[2], [3], [0]]
