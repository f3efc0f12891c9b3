"""Files that others name lie below what the user named, whatever the name looks like."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import fs

from forebay.errors import ForebayError, InvalidOption
from forebay.storage import credentials
from forebay.storage.boundary import Boundary, allowed_locations, check_stored_uri, is_name_below
from forebay.storage.filesystem import Location, resolve

STORE = fs.SubTreeFileSystem("/", fs.LocalFileSystem())
"""Stands for a client of an object store: nothing is opened here."""
ROOTS = {
    "s3://b/t": ["s3://b/t/", "s3a://b/t/", "S3N://b/t/"],
    "s3://b": ["s3://b/", "s3a://b/"],
    "s3://b/a b%2Bc?region=eu-west-1": ["s3://b/a b+c/"],
    "gs://anonymous@b/t?endpoint_override=h:1": ["gs://b/t/", "gcs://b/t/"],
    "abfs://c@acc.dfs.core.windows.net/t": [
        "abfss://c@acc.dfs.core.windows.net/t/",
        "ABFS://c@ACC.dfs.core.windows.net/t/",
    ],
}


def remote(uri: str) -> Location:
    name = uri.partition("?")[0].partition("://")[2]
    return Location(STORE, unquote(name), uri)


def boundary(root: Location, *allowed: Location) -> Boundary:
    return Boundary(table="The table", root=root, allowed=allowed)


odd = st.text(st.sampled_from("ab/.%25 ?#\\&=+:é~2eE"), max_size=12)


@pytest.mark.parametrize("root", ROOTS)
@given(name=odd, is_encoded=st.booleans())
@example(name="x?endpoint_override=h", is_encoded=False)
@example(name="%2e%2e/x", is_encoded=True)
def test_a_uri_is_the_root_and_a_name_below_it(root: str, name: str, is_encoded: bool) -> None:
    place = remote(root)
    folder, mark, options = root.partition("?")
    for path in (name, *(f"{prefix}{name}" for prefix in ROOTS[root])):
        try:
            found = boundary(place).uri_of(quote(path, safe=":/@") if is_encoded else path, is_encoded=is_encoded)
        except InvalidOption:
            continue
        assert found == root or (found.startswith(f"{folder}/") and found.endswith(mark + options))
        assert found.count("?") == root.count("?")
        assert not {".", ".."} & set(unquote(found.partition("?")[0]).split("/"))


@pytest.mark.parametrize("root", ROOTS)
def test_plain_names_are_taken_as_they_are(root: str) -> None:
    folder, mark, options = root.partition("?")
    for name in ("x.parquet", "p=a%20b/é+:,@.parquet", "a?b#c.parquet", "...x/..y", "a//b"):
        expected = f"{folder}/{quote(name, safe='/=,:@+')}{mark}{options}"
        for path in (name, *(prefix + name for prefix in ROOTS[root])):
            assert boundary(remote(root)).uri_of(path, is_encoded=False) == expected
    assert boundary(remote(root)).uri_of(
        "p=a%2520b", is_encoded=True
    ) == f"{folder}/p%3Da%2520b{mark}{options}".replace("%3D", "=")


OUTSIDE = [
    "s3://c/t/x", "s3://b/tt/x", "s3://b/x", "s3://b/t/../x", "s3://b/t/./x", "s3://u:p@b/t/x", "s3://b:80/t/x", "s3://B/t/x",
    "s3://b?endpoint_override=h&x=/t/x", "s3://b#/t/x", "s3://b%2Ft/x", "s3:/t/x", "s3:///t/x", "//b/t/x", "/x",
    "../x", "..",
    "./x", "gs://b/t/x", "http://b/t/x", "file:///b/t/x", "reference://b/t/x", "simplecache::s3://b/t/x", "s3://b/t/x\0",
    "s3://b/t\\..\\..\\x",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("is_encoded", [False, True])
def test_nothing_outside_is_named(path: str, is_encoded: bool) -> None:
    place = remote("s3://b/t?region=eu-west-1")
    if path.startswith("simplecache::"):  # no scheme: a name
        assert boundary(place).uri_of(path, is_encoded=is_encoded).startswith("s3://b/t/simplecache")
        return
    with pytest.raises(InvalidOption, match=r"allow_locations=.*--allow-location"):
        boundary(place).uri_of(path, is_encoded=is_encoded)


def test_an_allowed_location_keeps_its_own_options() -> None:
    allowed = remote("s3://other/clone?endpoint_override=mine:9000")
    of_table = boundary(remote("s3://b/t"), allowed)
    assert of_table.uri_of("s3a://other/clone/x", is_encoded=False) == "s3://other/clone/x?endpoint_override=mine:9000"
    assert of_table.uri_of("s3://other/clone", is_encoded=False) == allowed.uri
    for path in ("s3://other/clones/x", "s3://other/x", "s3://other/clone/../x"):
        with pytest.raises(InvalidOption, match="is not below s3://b/t|segment"):
            of_table.uri_of(path, is_encoded=False)


def test_hadoop_and_hub_names_are_used_as_they_are() -> None:
    files = fs.PyFileSystem(fs.FSSpecHandler(object()))
    hdfs = boundary(Location(files, "/t", "hdfs://nn/t"))
    for path in ("a?x=1", "hdfs://NN:8020/t/a?x=1"):
        assert hdfs.uri_of(path, is_encoded=False) == "hdfs://nn/t/a?x=1?&"
    with pytest.raises(InvalidOption, match="not below"):
        hdfs.uri_of("hdfs://other/t/a", is_encoded=False)
    hub = boundary(Location(files, "datasets/o/n@c", "hf://datasets/o/n@c"))
    assert hub.uri_of("a%20b#c", is_encoded=False) == "hf://datasets/o/n@c/a%20b#c"
    with pytest.raises(InvalidOption, match="read as options"):
        hub.uri_of("a?token=x", is_encoded=False)


@given(name=odd)
def test_local_names_are_normalized_and_stay_below(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "table"
    for path in (name, f"{folder}/{name}", f"file:{folder}/{name}", f"FILE://localhost{folder}/{name}"):
        try:
            found = boundary(resolve(folder)).uri_of(path, is_encoded=False)
        except InvalidOption:
            continue
        assert os.path.realpath(found).startswith(os.path.realpath(folder))
        assert found == os.path.normpath(found)


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    for folder in ("table/data", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "table/out").symlink_to(tmp_path / "other")
    (tmp_path / "table/in").symlink_to(tmp_path / "table/data")
    (tmp_path / "named").symlink_to(tmp_path / "table")
    root = resolve(tmp_path / "named")
    within = boundary(root)
    assert within.uri_of("in/x", is_encoded=False) == f"{root.path}/in/x"
    assert within.uri_of(f"{tmp_path}/table/data/x", is_encoded=False) == f"{root.path}/data/x"
    for path in ("out/x", f"{tmp_path}/other/x", "in/../../other/x", "file://host/x"):
        with pytest.raises(InvalidOption, match="not below"):
            within.uri_of(path, is_encoded=False)
    with_other = boundary(root, *allowed_locations(tmp_path / "other"))
    assert with_other.uri_of("out/x", is_encoded=False) == f"{tmp_path}/other/x"


@pytest.mark.parametrize("wrong", [5, [5], None, {"a"}])
def test_locations_are_a_path_or_a_list(wrong: object) -> None:
    with pytest.raises(ForebayError, match="location"):
        allowed_locations(wrong)  # type: ignore[arg-type]


STORED = [
    "/data/x", "s3://bucket/x?region=eu-west-1", "s3://b?anonymous=true", "gs://anonymous@b/x", "gcs://b/x?project_id=p",
    "abfss://c@acc.dfs.core.windows.net/x", "abfs://container/x", "hf://datasets/o/n", "memory://x/y", "hdfs:///x?replication=2",
]  # fmt: skip
NEVER = [
    "s3://b/x?endpoint_override=h", "s3://b/x?region=h/#", "s3://b/x?scheme=http", "s3://b/x?tls_verify_certificates=false",
    "s3://key:secret@b/x", "s3://b.h:80/x", "gs://b/x?endpoint_override=h&region=r", "gs://u@b/x", "abfs://a@h.example/c/x",
    "abfs://c@acc.dfs.core.windows.net.h/x", "abfs://b/x?blob_storage_authority=h", "hdfs://h/x", "hdfs://h:1/x?user=me",
    "hdfs:///x?kerberos_keytab=/k", "http://h/x", "https://h/x", "reference://x", "filecache://x", "simplecache://x", "zip://x",
    "data://x", "github://o:r@/x", "webhdfs://h/x", "sftp://h/x", "local:///x", "file://h/x", "x/y",
    "~/x", "", "/a/../b",
    "s3://b/%2e%2e/x", "s3a://b/x?endpoint_override=h", "S3://b/x?endpoint_override=h", "memory://x?y=z", "/x\0", "s3://b/x?e=1",
]  # fmt: skip


@pytest.mark.parametrize("uri", STORED)
def test_stored_uris_of_known_stores_are_opened(uri: str) -> None:
    check_stored_uri(uri, "The manifest", resolve("/m.json"))


@pytest.mark.parametrize("uri", NEVER)
def test_stored_uris_choose_no_host_and_no_key(uri: str) -> None:
    with pytest.raises(InvalidOption, match="The manifest names .*allow_locations=") as caught:
        check_stored_uri(uri, "The manifest", resolve("/m.json"))
    assert "secret" not in str(caught.value)


def test_the_user_may_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    own, allowed = remote("s3://b/m.json?endpoint_override=h"), remote("s3://c/data?endpoint_override=h")
    uri = "s3://c/data/x?endpoint_override=h"
    check_stored_uri(uri, "M", own)
    check_stored_uri(uri, "M", resolve("/m.json"), [allowed])
    for other in ("s3://c/data/x?endpoint_override=g", "s3://c/data/x?endpoint_override=h&scheme=http", "gs://c/x"):
        with pytest.raises(InvalidOption):
            check_stored_uri(other + ("?endpoint_override=h" if "?" not in other else ""), "M", own, [allowed])
    with pytest.raises(InvalidOption):
        check_stored_uri("s3://c/datas/x?endpoint_override=h", "M", resolve("/m.json"), [allowed])
    monkeypatch.setattr(credentials, "_granted", {})
    monkeypatch.setattr(credentials, "_secrets", set())
    credentials.without_credentials("s3://AKIAKEYKEY:given-by-the-user@c/data?endpoint_override=h")
    check_stored_uri(uri, "M", resolve("/m.json"))


@given(name=odd)
def test_names_below_a_folder(name: str) -> None:
    for root in ("s3://b/t?region=r", "hdfs://nn/t", "/t", "memory://t"):
        if is_name_below(root, name):
            assert not {"", ".", ".."} & {name, unquote(name).split("/")[0] if root.startswith("s3") else ""} - {""}
            assert not name.startswith("/")
