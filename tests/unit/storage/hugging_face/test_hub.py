"""Datasets on the Hugging Face Hub.

They are pinned to a commit, with few requests, waits that the Hub asks for, and tokens.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import InvalidOption, NoFiles, ReadFailed
from forebay.storage.filesystem import resolve
from forebay.storage.hugging_face import files
from forebay.storage.hugging_face.repository import Repository, split_path
from forebay.storage.hugging_face.requests import HubRequests, RateLimited
from forebay.storage.retry import ReadPolicy

QUICK = ReadPolicy(attempts=2, first_wait_s=0.001, max_wait_s=0.002)
ROOT = "hf://datasets/org/name"


def parquet(*values: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": list(values)}), sink, row_group_size=2)
    return sink.getvalue()


def values_of(manifest: fb.Manifest) -> list[int]:
    reader = RowGroupReader(manifest, QUICK)
    return [value for index in range(len(manifest)) for value in reader.read(index)["x"].to_pylist()]


def epoch(plan: Any, rank: int) -> list[float]:
    """Labels of one rank of two."""
    with fb.Loader(plan, fb.Transform(x=fb.Label("x")), global_batch=2, world=fb.World(rank=rank, size=2)) as loader:
        return [value for batch in loader if batch.weight for value in batch["x"].tolist()]


def test_a_scan_is_pinned_to_the_commit_of_its_branch(hub: Any) -> None:
    first = hub.commit({"README.md": b"#", "data/a b.parquet": parquet(1, 2, 3), "data/more/b.parquet": parquet(4)})
    manifest = fb.scan(f"{ROOT}/data")
    assert manifest.root == f"{ROOT}@{first}/data"
    second = hub.commit({"data/c.parquet": parquet(9)})
    assert values_of(manifest) == [1, 2, 3, 4]
    assert fb.scan(ROOT).root == f"{ROOT}@{second}"
    assert fb.scan(f"{ROOT}@{first}/data") == manifest
    assert values_of(fb.scan(f"{ROOT}@{first}/data/*.parquet")) == [1, 2, 3]
    assert sorted(values_of(fb.scan([f"{ROOT}@{first}/data/more/b.parquet", f"{ROOT}/data/c.parquet"]))) == [4, 9]


def test_equal_files_of_another_commit_are_the_same_data_set(hub: Any) -> None:
    hub.commit({"a.parquet": parquet(1)}, branch="v1")
    hub.commit({"a.parquet": parquet(1), "README.md": b"more"})
    assert fb.scan(f"{ROOT}@v1") == fb.scan(ROOT)
    hub.commit({"a.parquet": parquet(2)})
    assert fb.scan(f"{ROOT}@v1") != fb.scan(ROOT)


def test_models_and_branches_with_slashes(hub: Any) -> None:
    hub.commit({"default/train/0.parquet": parquet(5)}, branch="refs/convert/parquet")
    hub.commit({"a.parquet": parquet(6)}, repository="models/org/name")
    for branch in ("refs%2Fconvert%2Fparquet", "refs/convert/parquet"):
        assert values_of(fb.scan(f"{ROOT}@{branch}/default")) == [5]
    assert values_of(fb.scan("hf://org/name")) == [6]


def test_a_scan_lists_in_pages_and_asks_for_the_commit_once(hub: Any) -> None:
    hub.page = 2
    hub.commit({f"data/{number}.parquet": parquet(number) for number in range(5)})
    manifest = fb.scan([f"{ROOT}/data/{number}.parquet" for number in range(3)] + [f"{ROOT}/data"])
    assert manifest.num_rows == 5
    assert hub.counted("revision") == 1
    assert hub.counted("tree") <= 1 + 3 + 3, "the root, and the folder in pages: once for its files, once below it"
    hub.requests.clear()
    assert sorted(values_of(manifest)) == [0, 1, 2, 3, 4]
    assert hub.counted("tree") == 0 and hub.counted("revision") == 0
    assert hub.counted("resolve") == 2 * 5, "the footer and the pages of each file"


def test_one_scan_serves_the_workers_of_a_run(hub: Any) -> None:
    hub.commit({f"data/{number}.parquet": parquet(number, number + 10) for number in range(4)})
    plan = fb.build_plan(fb.scan(f"{ROOT}/data"))
    hub.requests.clear()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(epoch, [plan, plan], [0, 1]))
    assert sorted(sum(parts, [])) == [0, 1, 2, 3, 10, 11, 12, 13]
    assert hub.counted("revision") == 0, "workers read the commit of the manifest"
    assert hub.counted("tree") <= 2 * 3, "each process lists the root and one folder, for the sizes of files"


@pytest.mark.parametrize(
    ("headers", "expected"), [({"Retry-After": "7"}, 7.0), ({"RateLimit": '"api";r=0;t=55'}, 55.0), ({}, 0.0)]
)
def test_the_hub_says_how_long_to_wait(hub: Any, headers: dict[str, str], expected: float) -> None:
    hub.answers = [(429, headers)]
    with pytest.raises(RateLimited, match="HTTP 429") as caught:
        HubRequests().get("/api/datasets/org/name/revision/main")
    assert caught.value.retry_after_s == pickle.loads(pickle.dumps(caught.value)).retry_after_s == expected


def test_reads_wait_as_long_as_the_hub_asks(hub: Any) -> None:
    """Of two attempts, only a waiting one finds the Hub open.

    It waits for a second.
    """
    hub.commit({"a.parquet": parquet(1, 2, 3)})
    hub.close_for(0.9)
    manifest = fb.scan(ROOT, policy=QUICK)
    hub.close_for(0.9)
    assert values_of(manifest) == [1, 2, 3]
    hub.answers = [(429, {})] * 8
    with pytest.raises(ReadFailed, match=r"8 attempts.*HTTP 429"):
        fb.scan(ROOT, policy=QUICK)


def test_a_private_repository_needs_a_token(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit({"a.parquet": parquet(1)})
    hub.token = "hf_open_sesame"
    with pytest.raises(ReadFailed, match=r"HTTP 401.*RepoNotFound.*HF_TOKEN"):
        fb.scan(ROOT, policy=QUICK)
    manifest = fb.scan(f"{ROOT}?token=hf_open_sesame")
    assert "sesame" not in manifest.root + repr(manifest)
    assert b"sesame" in pickle.dumps(manifest), "its pickle carries the token to the workers"
    assert values_of(manifest) == [1]
    monkeypatch.setenv("HF_TOKEN", "hf_open_sesame")
    assert values_of(fb.scan("hf://datasets/org/name@main")) == [1]
    assert set(hub.content_tokens) == {None}, "the host of the content is sent no token"


def test_what_is_not_there(hub: Any) -> None:
    commit = hub.commit({"a.parquet": parquet(1)})
    for place in ("hf://datasets/org/absent", f"{ROOT}@absent"):
        with pytest.raises(ReadFailed, match="has no commit to read.*HTTP 404"):
            fb.scan(place, policy=QUICK)
    with pytest.raises(NoFiles, match="does not exist"):
        fb.scan(f"{ROOT}/absent", policy=QUICK)
    place = resolve(f"{ROOT}@{commit}/b.json")
    with pytest.raises(OSError, match="the Hub is only read"):
        place.fs.open_output_stream(place.path)


def test_the_missing_package_is_named(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_opened", {})
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InvalidOption, match=r"pip install 'forebay\[hf\]'"):
        fb.scan(ROOT)


def test_a_next_page_of_another_host_is_not_asked_for(hub: Any) -> None:
    with pytest.raises(OSError, match="not below"):
        HubRequests().get(f"{hub.content_url}/api/datasets")


@pytest.mark.parametrize(
    ("path", "repository", "inner"),
    [
        ("datasets/org/name", Repository("datasets", "org/name", "main"), ""),
        ("org/name/a/b", Repository("models", "org/name", "main"), "a/b"),
        ("spaces/org/name@v1.0/a@b", Repository("spaces", "org/name", "v1.0"), "a@b"),
        ("datasets/org/name/a@b/c", Repository("datasets", "org/name", "main"), "a@b/c"),
        ("datasets/org/name@refs/pr/12/a", Repository("datasets", "org/name", "refs/pr/12"), "a"),
    ],
)
def test_paths(path: str, repository: Repository, inner: str) -> None:
    place = split_path(path)
    assert place == (repository, inner)
    assert split_path(f"{repository.root}/{inner}") == place
    assert split_path("datasets/org") is None
