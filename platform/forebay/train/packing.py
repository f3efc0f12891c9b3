"""The state of a commit to bytes and back."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO, Any, cast

import torch
from torch.utils.serialization import config

from forebay.train.pad import Pad
from forebay.train.sealed import Bytes


def pack(state: Mapping[str, Any], pad: Pad) -> memoryview:
    """`state` as the bytes of a file of `torch.save`, on `pad`."""
    pad.rewind()
    # It takes three quarters of the time, and the seal has a checksum. Without it `unzip` complains, PyTorch does not.
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(dict(state), cast(IO[bytes], pad))
    return pad.written()


def unpack(state: Bytes) -> dict[str, Any]:
    """What `pack` was given, in main memory. Raises `TypeError` for something else, and whatever unpicklers raise."""
    found = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise TypeError("it holds no state")
    return found
