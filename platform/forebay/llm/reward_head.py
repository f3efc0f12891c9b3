"""Reward head: one output for each token instead of the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from forebay.errors import InvalidOption
from forebay.llm.source.tokenizers import import_transformers

HEAD = "forebay_head"
"""Field of a configuration whose model is counted with another head."""
SCORE = "score"
"""Name of the head in transformers' models of sequence classification."""
OF_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Fields of a configuration that change the output of the last layer: of Gemma 2, Cohere, Granite and Falcon H1."""


def put_reward_head(model: Any) -> None:
    """Replace the output layer of `model` by one with a single output.

    It is drawn from torch's generator.
    """
    before = model.get_output_embeddings()
    head = nn.Linear(before.in_features, 1, bias=False, device=before.weight.device)
    if head.weight.device.type != "meta":
        nn.init.normal_(head.weight, std=getattr(model.config, "initializer_range", 0.02))
    # Tied to the embedding, it would get its shape again.
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)


def classifier_config(config: Mapping[str, Any], pad: int | None) -> dict[str, Any]:
    """Configuration of an exported reward model, for `AutoModelForSequenceClassification`."""
    return {
        **config,
        "architectures": [_classifier(config).__name__],
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "pad_token_id": pad,
    }


def output_name(model: Any) -> str:
    """Name of a model's output layer."""
    head = model.get_output_embeddings()
    found: str = next(name for name, each in model.named_modules() if each is head)
    return found


def check_reward_head(model: Any, config: Mapping[str, Any]) -> None:
    """Check that a reward model of this base can be exported.

    `model` has no memory, and its own output layer.

    Raises `InvalidOption` for a base that changes its output behind the last layer, and for one that transformers has
    no sequence classification of, or one of other layers.
    """
    if changed := [name for name in OF_LOGITS if config.get(name) not in (None, 0, 1)]:
        raise InvalidOption(
            f"loss='reward': the base changes its output behind the last layer ({changed[0]}={config[changed[0]]}), "
            "and a reward has no such bound. Take a base of another family.",
            option="loss",
        )
    transformers = import_transformers()
    with torch.device("meta"):
        other = _classifier(config)(transformers.AutoConfig.for_model(**_plain(config), num_labels=1))
    own = {name for name in model.state_dict() if not name.startswith(f"{output_name(model)}.")}
    theirs = {name for name in other.state_dict() if not name.startswith(f"{SCORE}.")}
    if own != theirs or f"{SCORE}.weight" not in other.state_dict():
        differs = sorted(own ^ theirs) or [f"{SCORE}.weight"]
        raise InvalidOption(
            f"loss='reward': {type(other).__name__} of transformers has other layers than the base ({differs[0]}), so "
            "the reward model could not be exported. Take a base of another family.",
            option="loss",
        )


def _classifier(config: Mapping[str, Any]) -> Any:
    """Class of transformers for sequence classification. Raises `InvalidOption` without one."""
    transformers = import_transformers()
    kind = type(transformers.AutoConfig.for_model(**_plain(config)))
    mapping = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if kind not in mapping:
        raise InvalidOption(
            f"loss='reward': transformers has no sequence classification of model_type={config.get('model_type')!r}, "
            "which a reward model is exported as. Take a base of another family.",
            option="loss",
        )
    return mapping[kind]


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ("architectures", "quantization_config")}
