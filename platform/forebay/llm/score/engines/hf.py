"""Engine of transformers: causal language models, on CPU or GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional

from forebay.errors import EngineFailed, InvalidOption, whole_number
from forebay.llm.chat.documents import Document
from forebay.llm.models import ModelSpec, read_config
from forebay.llm.score.engines.answer_text import AnswerText
from forebay.llm.score.engines.choices import choices_of, few_values
from forebay.llm.score.engines.engine import Pooling, Prompt, RowAnswer, Sampling
from forebay.llm.score.engines.generation import Generator
from forebay.llm.score.engines.grammar import SchemaTokens, grammar_of
from forebay.llm.score.engines.model_files import model_identity
from forebay.llm.score.engines.prompt_tokens import PromptTokens
from forebay.llm.source.hub_model import hub_access
from forebay.llm.source.tokenizers import TokenizerSpec, check_sizes, import_transformers, load_folder
from forebay.runtime.gpus import num_gpus

VERSION = 4
"""Part of every plan. Raised when equal prompts would get other answers."""
DTYPES = ("float32", "bfloat16", "float16")
_LOGIT_TOKENS = 4096
"""Most tokens of a batch whose logits are held at a time: 2 GB for 128,256 entries."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HfEngineSpec:
    """Engine `hf`. An `EngineSpec`.

    Attributes:
        model: Folder of a model, on any storage.
        batch: Prompts of a pass.
        dtype: Type of weights and activations.
        chat_template: "chatml", a Jinja text, or None for the tokenizer's own.
        gpus: GPUs of its process. None: the first of those that PyTorch finds, and else the CPU. 0: the CPU.
    """

    model: str
    batch: int = 32
    dtype: str = "float32"
    chat_template: str | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        whole_number("batch", self.batch, least=1)
        if self.dtype not in DTYPES:
            raise InvalidOption(f"dtype={self.dtype!r} is unknown. Choose one of {', '.join(map(repr, DTYPES))}.")

    def identity(self) -> Mapping[str, Any]:
        version = import_transformers().__version__
        template = TokenizerSpec(folder=self.model, template=self.chat_template).identity()["template"]
        facts = {"engine": f"hf {VERSION}, transformers {version}", "dtype": self.dtype, "chat_template": template}
        return {"model": model_identity(self.model), **facts}

    def check(self) -> None:
        read_config(self.model)

    def check_schema(self, schema: Mapping[str, Any]) -> None:
        if few_values(schema) is None:
            grammar_of(schema, "hf")

    @property
    def device(self) -> torch.device:
        """Device of the engine in this process.

        Raises `InvalidOption` for GPUs that are not there.
        """
        found = num_gpus() if self.gpus != 0 else 0
        if self.gpus and not found:
            raise InvalidOption(
                f"gpus_per_worker={self.gpus:g} is set, but PyTorch {torch.__version__} finds no GPU in the engine's "
                "process. Set gpus_per_worker=0, or install a build of PyTorch for the GPUs of the machine."
            )
        return torch.device("cuda", 0) if found else torch.device("cpu")

    def open(self) -> HfEngine:
        with hub_access(self.model):
            return HfEngine(self)


class HfEngine:
    """Opened engine `hf`.

    Prompts are answered in batches of similar length, in the order of (length, row).
    """

    def __init__(self, spec: HfEngineSpec) -> None:
        config = read_config(spec.model)
        template = TokenizerSpec(folder=spec.model, template=spec.chat_template).template_text
        tokenizer = load_folder(spec.model, template)
        check_sizes(len(tokenizer), config.get("vocab_size", len(tokenizer)), spec.model)
        self._device = spec.device
        # Prompts of all lengths would compile flex attention again and again, and nothing is recomputed for a gradient.
        form = ModelSpec(name=spec.model, vocab_size=0, attn="sdpa", gradient_checkpointing=False)
        model: Any = form.build(self._device)
        self._model: Any = model.eval().to(device=self._device, dtype=getattr(torch, spec.dtype))
        self._batch = spec.batch
        # Not from config.json: save_pretrained leaves out what is the default of the architecture.
        self._positions: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._tokens = PromptTokens(tokenizer=tokenizer, name=spec.model, positions=self._positions)
        self._schema_tokens: SchemaTokens | None = None
        self._ends = frozenset({tokenizer.eos_token_id, *_ends_of(self._model)})
        # Its temperature, penalties and other defaults would count in every answer.
        self._model.generation_config = type(self._model.generation_config)()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        tokenizer = self._tokens.tokenizer
        choices = None if sampling.schema is None else choices_of(sampling.schema, tokenizer)
        ends = self._ends | AnswerText(tokenizer=tokenizer, stop=sampling.stop).end_tokens
        generator = Generator(
            model=self._model,
            tokenizer=tokenizer,
            ends=ends,
            positions=self._positions,
            sampling=sampling,
            choices=choices,
            grammar=None if choices is not None or sampling.schema is None else self._grammar(sampling.schema),
        )
        rows = [prompt.row for prompt in prompts]
        return self._each(self._tokens.questions(prompts), rows, len, generator.answers)

    def _grammar(self, schema: Mapping[str, Any]) -> tuple[SchemaTokens, str]:
        grammar = grammar_of(schema, "hf")
        if self._schema_tokens is None:
            entries = self._model.get_output_embeddings().out_features
            self._schema_tokens = SchemaTokens.of(self._tokens.tokenizer, entries, self._ends)
        return self._schema_tokens, grammar

    def log_likelihood(self, prompts: Sequence[Prompt]) -> list[RowAnswer]:
        rows = [prompt.row for prompt in prompts]
        # The last token is predicted, and needs no position.
        return self._each(
            self._tokens.documents(prompts, room=-1), rows, _length, self._likelihoods, most=_LOGIT_TOKENS
        )

    def embed(self, prompts: Sequence[Prompt], pooling: Pooling) -> list[RowAnswer]:
        rows = [prompt.row for prompt in prompts]
        return self._each(self._tokens.questions(prompts), rows, len, partial(self._embeddings, pooling=pooling))

    def close(self) -> None:
        del self._model
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _each(
        self,
        tokens: Sequence[T | RowAnswer],
        rows: Sequence[int],
        length: Callable[[T], int],
        answer: Callable[[list[T], list[int]], list[RowAnswer]],
        most: int | None = None,
    ) -> list[RowAnswer]:
        """Answer `tokens` in batches, in their order.

        Elements that are answers already are returned unchanged.
        """
        answers: list[RowAnswer | None] = [each if isinstance(each, RowAnswer) else None for each in tokens]
        lengths = {number: length(each) for number, each in enumerate(tokens) if not isinstance(each, RowAnswer)}
        order = sorted(lengths, key=lambda number: (lengths[number], rows[number]))
        for chosen in _batches(order, lengths, self._batch, most):
            some = [each for number in chosen if not isinstance(each := tokens[number], RowAnswer)]
            for number, found in zip(chosen, self._guarded(answer, some, [rows[n] for n in chosen]), strict=True):
                answers[number] = found
        return [each for each in answers if each is not None]

    @torch.inference_mode()
    def _guarded(
        self, answer: Callable[[list[T], list[int]], list[RowAnswer]], tokens: list[T], rows: list[int]
    ) -> list[RowAnswer]:
        try:
            return answer(tokens, rows)
        except torch.AcceleratorError as error:  # the device answers nothing after one of these
            raise EngineFailed(f"the device of the hf engine failed: {error}") from error

    def _likelihoods(self, documents: list[Document], rows: list[int]) -> list[RowAnswer]:  # noqa: ARG002 - as `generate`
        ids, mask = self._padded([each.ids for each in documents])
        logits = self._model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1], use_cache=False).logits.float()
        is_target = np.zeros((len(documents), ids.shape[1]), bool)
        for line, each in zip(is_target, documents, strict=True):
            line[: len(each.ids)] = each.is_target
        counts = torch.from_numpy(is_target[:, 1:]).to(self._device)
        labels = ids[:, 1:]
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        sums = (losses.double() * counts).sum(dim=1)
        greedy = ((logits.argmax(dim=2) == labels) | ~counts).all(dim=1)
        return [
            RowAnswer(log_likelihood=-total, is_greedy=is_greedy, input_tokens=len(each.ids), output_tokens=num_targets)
            for each, total, is_greedy, num_targets in zip(
                documents, sums.tolist(), greedy.tolist(), counts.sum(dim=1).tolist(), strict=True
            )
        ]

    def _embeddings(self, questions: list[list[int]], rows: list[int], *, pooling: Pooling) -> list[RowAnswer]:  # noqa: ARG002
        ids, mask = self._padded(questions)
        hidden = self._model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state.float()
        if pooling == "last":
            vectors = hidden[torch.arange(len(questions)), mask.sum(dim=1) - 1]
        else:
            vectors = (hidden * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return [
            RowAnswer(embedding=tuple(vector), input_tokens=len(each))
            for vector, each in zip(vectors.tolist(), questions, strict=True)
        ]

    def _padded(self, lines: Sequence[Sequence[int] | np.ndarray[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask int64 [rows, longest], padded on the right."""
        ids = np.zeros((len(lines), max(map(len, lines))), np.int64)
        mask = np.zeros_like(ids)
        for number, line in enumerate(lines):
            ids[number, : len(line)], mask[number, : len(line)] = line, 1
        return torch.from_numpy(ids).to(self._device), torch.from_numpy(mask).to(self._device)


def _ends_of(model: Any) -> list[int]:
    """Tokens that end an answer by the model's generation configuration."""
    given = model.generation_config.eos_token_id
    return given if isinstance(given, list) else [] if given is None else [given]


def _length(document: Document) -> int:
    return len(document.ids)


def _batches(
    order: Sequence[int], lengths: Mapping[int, int], rows: int, most_tokens: int | None
) -> Iterator[list[int]]:
    """Split `order` into batches of at most `rows`.

    With padding, a batch has at most `most_tokens`. Lengths ascend.
    """
    chosen: list[int] = []
    for number in order:
        is_full = len(chosen) == rows
        if chosen and (is_full or (most_tokens is not None and lengths[number] * (len(chosen) + 1) > most_tokens)):
            yield chosen
            chosen = []
        chosen.append(number)
    if chosen:
        yield chosen
