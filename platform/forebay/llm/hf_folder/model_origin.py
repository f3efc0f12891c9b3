"""Origin of a trained model, stored in each checkpoint.

With it, a checkpoint alone can be exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forebay.llm.adapters import Lora
from forebay.llm.models import ModelSpec
from forebay.llm.source.tokenizers import TokenizerSpec

TRACKED = "model_origin"
"""Name under which a train function tracks it: `worker.track(model_origin=recipe.origin(worker.seed))`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrigin:
    """Base model, adapter and tokenizer of a run.

    A `Stateful` whose state never changes.

    Attributes:
        model: The model that the run started from.
        adapter: Adapter that is trained, or None for all of the model.
        tokenizer: Tokenizer of the data. None: an export has none.
        seed: Seed of the run, from which the weights of the tiny model were drawn.
    """

    model: ModelSpec
    adapter: Lora | None
    tokenizer: TokenizerSpec | None
    seed: int

    def state_dict(self) -> dict[str, Any]:
        """Plain values, which a checkpoint can hold."""
        adapter = None if self.adapter is None else _plain(asdict(self.adapter))
        tokenizer = None if self.tokenizer is None else _plain(asdict(self.tokenizer))
        return {"model": asdict(self.model), "adapter": adapter, "tokenizer": tokenizer, "seed": self.seed}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Check that a checkpoint trains the same part.

        Raises `ValueError`.
        """
        own = self.state_dict()["adapter"]
        found = self.of(state_dict).state_dict()["adapter"]  # with the fields that an older version did not have
        if own != found:
            raise ValueError(f"it was trained with {_adapter_text(found)}, and this run has {_adapter_text(own)}")

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> ModelOrigin:
        """Origin from its state."""
        adapter, tokenizer = state["adapter"], state["tokenizer"]
        if adapter is not None:
            adapter = {name: tuple(value) if isinstance(value, list) else value for name, value in adapter.items()}
        return cls(
            model=ModelSpec(**state["model"]),
            adapter=None if adapter is None else Lora(**adapter),
            tokenizer=None if tokenizer is None else TokenizerSpec(**tokenizer),
            seed=state["seed"],
        )


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}


def _adapter_text(adapter: Mapping[str, Any] | None) -> str:
    if adapter is None:
        return "no adapter"
    return ", ".join(f"lora_{name}={value!r}" for name, value in adapter.items())
