"""Credentials are removed from a URI and used where needed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from forebay.errors import InvalidOption, NoFiles
from forebay.storage import credentials
from forebay.storage.credentials import (
    Access,
    Credentials,
    granted,
    has_credentials,
    redact,
    redacted,
    redacting,
    without_credentials,
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    credentials._granted.clear()
    credentials._secrets.clear()


@pytest.mark.parametrize(
    ("uri", "public"),
    [
        ("s3://KEY:secret@b/x", "s3://b/x"),
        ("s3://KEY@b/x", "s3://b/x"),
        ("s3://b/x?access_key=K&secret_key=secret&region=r", "s3://b/x?region=r"),
        ("s3://b/x?region=r&secret_kye=secret", "s3://b/x?region=r"),
        ("gs://anonymous@b/x", "gs://anonymous@b/x"),
        ("gcs://b/x?access_token=secret&project_id=p", "gcs://b/x?project_id=p"),
        ("abfss://c@a.dfs.core.windows.net/x?sv=1&se=2&sig=secret", "abfss://c@a.dfs.core.windows.net/x"),
        ("abfs://a:secret@h:1/c/x?enable_tls=false", "abfs://a@h:1/c/x?enable_tls=false"),
        ("hdfs://user@name:8020/x?replication=2", "hdfs://user@name:8020/x?replication=2"),
        ("hdfs://user:secret@name:8020/x", "hdfs://user@name:8020/x"),
        ("webhdfs://h:1/x?token=secret&use_https=true", "webhdfs://h:1/x?use_https=true"),
        ("https://h/a.parquet?part=3&X-Amz-Signature=secret", "https://h/a.parquet?part=3"),
        ("https://token-of-mine@h/a.parquet", "https://h/a.parquet"),
        ("https://token-of-mine:x-oauth-basic@h/a.parquet?part=3", "https://h/a.parquet?part=3"),
        ("https://h/a.parquet?part=3&code=secret", "https://h/a.parquet?part=3"),
        ("https://h/a.parquet?Policy=secret&Signature=secret&part=3", "https://h/a.parquet?part=3"),
        ("ftp://user@h/a.parquet", "ftp://user@h/a.parquet"),
        ("memory://a b?.parquet", "memory://a b?.parquet"),
    ],
)
def test_public_part(uri: str, public: str) -> None:
    assert without_credentials(uri) == public
    assert without_credentials(public) == public
    assert (granted(public) == Credentials()) is (uri == public)


def test_a_slash_in_a_secret_is_not_taken_for_a_folder() -> None:
    with pytest.raises(InvalidOption, match="%2F") as caught:
        without_credentials("s3://KEY:sec/ret@b/x")
    assert "ret@" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "zip://a.parquet::s3://AKIA:sesame-9@b/k",
        "zip://a::https://host/a.zip?sig=sesame-9",
        "simplecache::zip://a::ftp://u:sesame-9@h/a",
    ],
)
def test_credentials_of_a_uri_within_a_uri_are_refused(uri: str) -> None:
    assert has_credentials(uri)
    with pytest.raises(InvalidOption, match="The URI behind :: holds credentials") as refused:
        without_credentials(uri)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("uri", ["zip://a.parquet::https://host/a.zip", "s3://bucket/a::b", "simplecache::s3://b/k"])
def test_a_uri_within_a_uri_is_kept(uri: str) -> None:
    assert without_credentials(uri) == uri and not has_credentials(uri)


def test_the_nearest_folder_decides_and_the_newest_replaces() -> None:
    for uri in ("s3://A:one@b/x/old", "s3://B:two@b/y", "s3://C:three@other/x"):
        without_credentials(uri)
    assert granted("s3://b/x/1.parquet").password == "one"
    assert granted("s3://b/y/deep/1.parquet").password == "two"
    assert granted("s3://b/z").password == "two"
    assert granted("s3://b/x?region=r") == Credentials()
    without_credentials("s3://D:four@b/y")
    assert granted("s3://b/y/1.parquet").password == "four"
    without_credentials("s3://b/y")
    assert granted("s3://b/y/1.parquet").password == "four"


def test_they_travel_in_a_pickle_and_in_nothing_else() -> None:
    access = Access([without_credentials("s3://KEY:sesame-open@b/x?region=r"), "/local", "s3://never/heard"])
    without_credentials("s3://KEY:of-another@c/x")
    assert "sesame" not in repr(access) + repr(vars(access)) + repr(granted("s3://b/x?region=r"))
    digest = access.digest
    for _ in range(2):  # and from there to a third process
        sent = pickle.dumps(access)
        assert b"of-another" not in sent
        credentials._granted.clear()
        access = pickle.loads(sent)
        assert granted("s3://b/x/1.parquet?region=r") == Credentials("KEY", "sesame-open")
        assert access.digest == digest


def test_errors_are_blotted_out_in_every_spelling_and_in_their_causes() -> None:
    without_credentials("s3://KEYKEYKEY:open%2Fsesame%2Bplease@b/x")
    assert redact("open/sesame+please open%2Fsesame%2Bplease KEYKEYKEY") == "*** *** ***"
    plain = OSError("no such thing")
    assert redacted(plain) is plain
    with pytest.raises(FileNotFoundError) as caught, redacting():
        _raise_from(FileNotFoundError("gone"), ValueError("open/sesame+please"))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("scheme", ["s3", "http", "https"])
def test_a_key_or_token_is_hidden_wherever_a_text_has_it(scheme: str) -> None:
    without_credentials(f"{scheme}://mine-77@b/x")
    assert redact("refused: mine-77") == "refused: ***"


def test_errors_of_forebay_keep_their_kind() -> None:
    """Commands print them without a traceback, and `except` clauses look for them."""
    with pytest.raises(NoFiles, match=r"^ftp://u:\*\*\*@h/x has no file$") as caught, redacting():
        _raise_from(NoFiles("ftp://u:sesame@h/x has no file", uri="ftp://u:sesame@h/x", rows=3), OSError("404"))
    assert caught.value.facts == {"uri": "ftp://u:***@h/x", "rows": 3}
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "a.parquet,https://mine-77@h/b.parquet,HTTPS://mine-77:x@h",
            "a.parquet,https://***@h/b.parquet,HTTPS://***@h",
        ),
        ("no way to ftp://user:mine-77@h/x?y", "no way to ftp://user:***@h/x?y"),
        ("'s3://KEY:mine-77@b' or s3://KEY@b", "'s3://***@b' or s3://***@b"),
        ("user@h, hf://datasets/a/b@v1 abfs://c@a/x hdfs://u@name:8020/x at 10:30", None),
    ],
)
def test_logins_in_texts_are_hidden_though_they_were_never_used(text: str, shown: str | None) -> None:
    assert redact(text) == (text if shown is None else shown)
    assert redact(redact(text)) == redact(text)


def _raise_from(error: Exception, cause: Exception) -> None:
    raise error from cause


@pytest.mark.parametrize(
    "option",
    ["connection_string=AccountKey", "pwd=hunter22", "jwt=abcdefg", "delegation=ABCDEFG", "private_key=abcdefg"],
)
def test_other_names_of_secrets(option: str) -> None:
    assert without_credentials(f"https://host/file?a=b&{option}") == "https://host/file?a=b"
