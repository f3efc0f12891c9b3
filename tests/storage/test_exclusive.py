"""Conditional creation on real servers.

S3 (moto), WebHDFS, and an emulator of Google's that ignores conditions.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.storage.conftest import ObjectStore

from forebay.errors import InvalidOption
from forebay.storage.exclusive import NoExclusiveCreation, create_exclusively
from forebay.storage.filesystem import resolve

RACERS = 16


# A real HDFS needs 0.2 s for a small file.
MORE_RACES = [("webhdfs", 3), ("hdfs", 3), ("real_webhdfs", 3), ("s3", 100), ("webhdfs", 100)]


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("s3", 3),
        *(pytest.param(*race, marks=pytest.mark.variation("another store, more rounds")) for race in MORE_RACES),
    ],
)
def test_one_of_many_racers_wins(request: pytest.FixtureRequest, name: str, rounds: int) -> None:
    store: ObjectStore = request.getfixturevalue(name)
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(rounds):
            uri = store.uri(f"race-{rounds}/{number}.json")
            contents = [f"racer {racer}".encode() for racer in range(RACERS)]
            won = list(pool.map(create_exclusively, [uri] * RACERS, contents))
            assert won.count(True) == 1
            place = resolve(uri)
            with place.fs.open_input_stream(place.path) as stream:
                assert stream.read() == contents[won.index(True)]


def test_repeated_request_finds_its_own_file(s3: ObjectStore) -> None:
    """A client repeats a request whose answer was lost.

    The store then refuses it, because it had been carried out.
    """
    assert create_exclusively(s3.uri("again"), b"unique to this caller")
    assert create_exclusively(s3.uri("again"), b"unique to this caller")
    assert not create_exclusively(s3.uri("again"), b"another's")


def test_store_that_ignores_the_condition_is_found_out(gcs: ObjectStore) -> None:
    with pytest.raises(NoExclusiveCreation, match="created twice.*ignores conditions"):
        create_exclusively(gcs.uri("ignored"), b"1")


def test_missing_package_is_named_with_its_extra(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(InvalidOption, match=r"needs the package boto3.*pip install 'forebay\[s3\]'"):
        create_exclusively(s3.uri("x"), b"1")


def test_refusals_of_the_store_are_os_errors(s3: ObjectStore) -> None:
    place = s3.uri("x").replace("@bucket/", "@no-such-bucket/")
    with pytest.raises(OSError, match="NoSuchBucket") as caught:
        create_exclusively(place, b"1")
    assert "s3-secret-of-tests" not in str(caught.value)


def test_address_of_the_environment_is_used_as_it_is(
    s3: ObjectStore, s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, password = s3.secrets
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", user)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", password)
    uri = "s3://bucket/claims/by-environment?region=us-east-1"
    assert create_exclusively(uri, b"first")
    assert not create_exclusively(uri, b"second")
