from __future__ import annotations

import os

import pytest

from forebay.training.driver.warm_up import use_interface_of

psutil = pytest.importorskip("psutil")
NAMES = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")


@pytest.mark.parametrize(
    ("address", "given", "chosen"),
    [("127.0.0.1", None, True), ("127.0.0.1", "bond0", False), ("192.0.2.77", None, False)],
)
def test_gloo_is_bound_to_the_interface_of_the_node(
    monkeypatch: pytest.MonkeyPatch, address: str, given: str | None, chosen: bool
) -> None:
    found = psutil.net_if_addrs().items()
    loopback = next(name for name, entries in found if any(each.address == "127.0.0.1" for each in entries))
    for name in NAMES:
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    use_interface_of(address)
    assert [os.environ.get(name) for name in NAMES] == [loopback if chosen else given] * 2
