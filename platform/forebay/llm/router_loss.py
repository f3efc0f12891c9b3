"""Loss that balances the experts of a mixture.

Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from forebay.errors import InvalidOption
from forebay.llm.loss import causal_model
from forebay.llm.token_batch import document_tokens

Balance = Callable[[tuple[Tensor, ...], int, int, Tensor], Tensor]
_NAME = "load_balancing_loss_func"
_FACTS = ("num_experts", "num_experts_per_tok", "router_aux_loss_coef")


def check_router_loss(model: Any, coefficient: float) -> None:
    """Check that `model` has a router loss.

    Raises `InvalidOption` for a coefficient below 0, and for a model whose routers transformers does not balance so.
    """
    if not 0 <= coefficient < math.inf:
        raise InvalidOption(f"router_aux_loss_coef={coefficient} cannot train. Give 0 or more, such as 0.001.")
    if coefficient and _balance(model) is None:
        raise InvalidOption(
            f"router_aux_loss_coef={coefficient}: transformers has no such loss for {type(model).__name__}, which has "
            "no experts, or balances them in another way. Leave it out."
        )


def router_losses(model: Any, packed: Tensor, logits: Sequence[Tensor]) -> Tensor:
    """Router loss of each row, float32 [rows].

    Over the tokens of its documents, without the empty end of the row. `packed` has the rows, and `logits` come from
    each layer's router, [tokens of all rows, experts].
    """
    causal = causal_model(model)
    causal = getattr(causal, "get_base_model", lambda: causal)()
    balance = _balance(causal)
    assert balance is not None, "check_router_loss() comes first"
    is_token = document_tokens(packed)
    # A row of nothing but its end has no targets, and weighs nothing.
    is_token |= ~is_token.any(dim=1, keepdim=True)
    layers = [each.view(*is_token.shape, -1) for each in logits]
    return torch.stack(
        [
            balance(tuple(each[row] for each in layers), causal.num_experts, causal.num_experts_per_tok, is_token[row])
            for row in range(len(is_token))
        ]
    )


def _balance(causal: Any) -> Balance | None:
    """Function of transformers for the architecture, or None."""
    # A strategy may have made a class of the model's: torch's `fully_shard` does.
    modules = (sys.modules.get(each.__module__) for each in type(causal).__mro__)
    found: list[Balance] = [getattr(each, _NAME) for each in modules if hasattr(each, _NAME)]
    return found[0] if found and all(hasattr(causal, each) for each in _FACTS) else None
