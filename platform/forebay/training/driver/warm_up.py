"""Warm-up of a worker process."""

from __future__ import annotations

import os


def make_a_step() -> None:
    """Train a tiny model for one step, and load the kernels.

    So torch sets up what it needs on first use.
    """
    # The first step of any optimizer imports it: 1 to 3 s. Only worker processes should pay that.
    import torch._dynamo  # noqa: PLC0415

    from forebay.data.parquet import page_kernels  # noqa: PLC0415 - this module is imported before all others

    page_kernels.load()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def use_interface_of(address: str) -> None:
    """Bind this process's gloo to a network interface.

    The one that has `address`, the node's address in Ray. Otherwise gloo looks up the host name, which may be unknown,
    or stand for 127.0.1.1 in `/etc/hosts`, as Debian writes it: then no other node reaches this one.
    """
    import psutil  # noqa: PLC0415 - Ray and Horovod bring it

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("HOROVOD_GLOO_IFACE", name)
