"""Head of a checkpoint in parts.

It is a state that names tensors instead of holding them, and the table of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from forebay.training.checkpoint.encoded import Bytes, CorruptCheckpoint, PartFacts, sum_of
from forebay.training.checkpoint.parts.contents import StoredTensor, from_plain, merged, to_plain
from forebay.training.checkpoint.parts.part import PartReceipt, read_region
from forebay.training.checkpoint.parts.verified_part import ReadBytes, VerifiedPart

TABLE = "parts"
_NAME, _SCALAR = "tensor in parts", "scalar"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsTable:
    """Tensors and parts of a checkpoint.

    Tensors are by logical name. Parts have their size and block checksums, by number. `nodes` are those whose memory
    had a part first.
    """

    tensors: Mapping[str, StoredTensor]
    parts: Mapping[int, tuple[int, Sequence[int]]]
    nodes: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def in_state(cls, state: Mapping[str, Any]) -> PartsTable | None:
        """Return the table of a head.

        None for a state that has all of its tensors.
        """
        if TABLE not in state:
            return None
        text = state[TABLE]
        plain = json.loads(text) if isinstance(text, str) else text  # Containers, in heads of former commits.
        parts = {int(number): (facts["bytes"], tuple(facts["sums"])) for number, facts in plain["parts"].items()}
        nodes = {int(number): facts.get("node", "") for number, facts in plain["parts"].items()}
        return cls(tensors=from_plain(plain["tensors"]), parts=parts, nodes=nodes)

    def facts(self) -> list[PartFacts]:
        """Return the facts of all parts."""
        return [
            PartFacts(number=number, num_bytes=size, checksum=sum_of(sums), node=self.nodes.get(number, ""))
            for number, (size, sums) in self.parts.items()
        ]

    def open(self, copies_of: Callable[[PartFacts], Iterable[ReadBytes]]) -> dict[int, VerifiedPart]:
        """Return a verified reader of every part, by number."""
        return {
            facts.number: VerifiedPart(facts, self.parts[facts.number][1], copies_of(facts)) for facts in self.facts()
        }


def table_text(receipts: Sequence[PartReceipt]) -> str:
    """Return the table of all ranks' receipts as JSON.

    For a head. Raises `CorruptCheckpoint`.

    As containers, it would take most of the time of writing the head.
    """
    parts = {
        each.number: {"bytes": each.num_bytes, "sums": each.sums, **({"node": each.node} if each.node else {})}
        for each in receipts
    }
    tensors = _tensors_text(tuple(each.contents for each in receipts))
    return f'{{"tensors": {tensors}, "parts": {json.dumps(parts)}}}'


@lru_cache(maxsize=1)
def _tensors_text(contents: tuple[str, ...]) -> str:
    return json.dumps(to_plain(merged(contents).values()))


def scalar(value: Tensor) -> dict[str, tuple[str, Any]]:
    """Return a head's value for a tensor without dimensions.

    An optimizer has one for each parameter. As tensors, they would take most of the time of writing the head.
    """
    return {_SCALAR: (str(value.dtype).removeprefix("torch."), value.item())}


def scalar_tensor(leaf: object) -> Tensor | None:
    """Return the tensor that `scalar` made `leaf` of.

    None for any other value.
    """
    if not (isinstance(leaf, Mapping) and leaf.keys() == {_SCALAR}):
        return None
    dtype, value = leaf[_SCALAR]
    return torch.tensor(value, dtype=getattr(torch, dtype), device="cpu")


def named(name: str) -> dict[str, str]:
    """Return a head's value for the tensor `name`."""
    return {_NAME: name}


def tensor_name(leaf: object) -> str | None:
    """Return the name of the tensor that `leaf` stands for.

    `leaf` is the head's value for a tensor in parts. None for any other value.
    """
    return str(leaf[_NAME]) if isinstance(leaf, Mapping) and leaf.keys() == {_NAME} else None


def filled(state: Any, tensor_of: Callable[[str], Any]) -> Any:
    """Return `state` with `tensor_of(name)` for each named tensor."""
    if isinstance(state, Mapping):
        if state.keys() == {_NAME}:
            return tensor_of(state[_NAME])
        if (number := scalar_tensor(state)) is not None:
            return number
        return {key: filled(value, tensor_of) for key, value in state.items()}
    if isinstance(state, list | tuple) and any(isinstance(each, Mapping | list | tuple) for each in state):
        return type(state)(filled(each, tensor_of) for each in state)
    return state


def whole_state(state: Mapping[str, Any], parts: Mapping[int, Bytes]) -> Mapping[str, Any]:
    """Return the head `state` with all of its tensors.

    They come from parts in memory. Raises `CorruptCheckpoint`.
    """
    table = PartsTable.in_state(state)
    if table is None:
        return state
    if missing := table.parts.keys() - parts.keys():
        raise CorruptCheckpoint(f"parts {sorted(missing)} were not read")
    opened = table.open(lambda facts: [lambda begin, end: memoryview(parts[facts.number])[begin:end]])

    def whole(name: str) -> Tensor:
        tensor = table.tensors[name]
        return read_region(tensor, ((0,) * len(tensor.shape), tensor.shape), opened)

    rest = {key: value for key, value in state.items() if key != TABLE}
    found: Mapping[str, Any] = filled(rest, whole)
    return found
