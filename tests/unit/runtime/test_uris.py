"""Names and options of URIs on HDFS.

Names may hold a `?`.
"""

from __future__ import annotations

import pytest

from forebay.runtime.uris import split_options, with_options
from forebay.storage.filesystem import below, path_below

NAMES = [
    "a b.parquet",
    "a?.parquet",
    "a?b=c.parquet",
    "x?replication=2",
    "x?&",
    "x?",
    "day=?/b#c.parquet",
    "a%20é.parquet",
]


@pytest.mark.parametrize("options", ["", "?replication=2", "?replication=2&kerberos_keytab=/etc/krb/k"])
@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_found_again_with_its_options(name: str, options: str) -> None:
    assert split_options(with_options(f"hdfs://h/{name}", options))[0] == f"hdfs://h/{name}"
    folder = f"hdfs://h/data?x=1/c{options or '?&'}"
    uri = below(folder, name)
    assert path_below(uri, folder) == name
    assert below(folder, path_below(uri, folder)) == uri
    assert split_options(uri) == (f"hdfs://h/data?x=1/c/{name}", options or split_options(uri)[1])


def test_options_end_a_name_and_a_pattern_is_none() -> None:
    assert split_options("hdfs://h/a/b?replication=2") == ("hdfs://h/a/b", "?replication=2")
    assert split_options("HDFS://h/day=?/part-?") == ("HDFS://h/day=?/part-?", "")
    assert split_options("viewfs://h/day=?/x=1/part-?.parquet") == ("viewfs://h/day=?/x=1/part-?.parquet", "")
    assert split_options("/local/a?b=c") == ("/local/a?b=c", "")
