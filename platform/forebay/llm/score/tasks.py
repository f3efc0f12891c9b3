"""Tasks of a scoring run, and their output columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

from forebay.errors import InvalidOption
from forebay.llm.score.engines.engine import Engine, Pooling, Prompt, RowAnswer, Sampling, check_pooling
from forebay.llm.score.verdicts import InvalidVerdict, check_schema, verdict_of

Kind = Literal["generate", "log_likelihood", "embed", "judge"]
"""Text, the likelihood of a given text, the vector of a text, or a text that is JSON of a schema."""

ROW, ERROR, VERDICT = "row", "error", "verdict"
COLUMNS: Mapping[Kind, Mapping[str, pa.DataType]] = {
    "generate": {
        "text": pa.string(),
        "finish_reason": pa.string(),
        "input_tokens": pa.int32(),
        "output_tokens": pa.int32(),
    },
    "log_likelihood": {
        "log_likelihood": pa.float64(),
        "is_greedy": pa.bool_(),
        "input_tokens": pa.int32(),
        "output_tokens": pa.int32(),
    },
    "embed": {"embedding": pa.list_(pa.float32()), "input_tokens": pa.int32()},
}
"""Columns of the answers, between the source's columns and `error`.

A judge has `verdict` and the columns of `generate`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTask:
    """Kind of the answers, and the options of it."""

    kind: Kind
    sampling: Sampling = field(default_factory=Sampling)
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            known = ", ".join(map(repr, get_args(Kind)))
            raise InvalidOption(f"task={self.kind!r} is unknown. Choose one of {known}.")
        check_pooling(self.pooling)
        if (self.kind == "judge") != (self.sampling.schema is not None):
            raise InvalidOption(
                f"task={self.kind!r} {'needs' if self.kind == 'judge' else 'has no'} schema=. A schema is the form of "
                'the verdicts of task="judge".'
            )
        if self.sampling.schema is not None:
            check_schema(self.sampling.schema)

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the answers to given prompts."""
        facts: dict[str, Any] = {"task": self.kind}
        if self.kind in ("generate", "judge"):
            given = asdict(self.sampling)
            facts["sampling"] = {name: value for name, value in given.items() if value not in (None, ())}
        if self.kind == "embed":
            facts["pooling"] = self.pooling
        return facts

    def ask(self, engine: Engine, prompts: Sequence[Prompt]) -> list[RowAnswer]:
        """Ask the engine, in the order of the prompts.

        Raises what the engine raises.
        """
        match self.kind:
            case "log_likelihood":
                return engine.log_likelihood(prompts)
            case "embed":
                return engine.embed(prompts, self.pooling)
            case _:
                return engine.generate(prompts, self.sampling)

    def columns(self, answers: Sequence[RowAnswer]) -> dict[str, pa.Array]:
        """Columns of the answers, null where there is an error."""
        kinds = COLUMNS["generate" if self.kind == "judge" else self.kind]
        made = {name: pa.array([_field(each, name) for each in answers], kind) for name, kind in kinds.items()}
        errors = [each.error for each in answers]
        if self.sampling.schema is not None:
            verdicts, errors = _verdicts(answers, self.sampling.schema, self.sampling.max_tokens)
            made[VERDICT] = pa.array(verdicts, pa.string())
        return {**made, ERROR: pa.array(errors, pa.string())}

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the columns that the run itself writes."""
        return (ROW, *COLUMNS["generate" if self.kind == "judge" else self.kind], VERDICT, ERROR)


def _field(answer: RowAnswer, name: str) -> Any:
    return None if answer.error is not None and name != "input_tokens" else getattr(answer, name)


def _verdicts(
    answers: Sequence[RowAnswer], schema: Mapping[str, Any], max_tokens: int
) -> tuple[list[str | None], list[str | None]]:
    """Verdicts as JSON texts, and the errors.

    Errors of the answers, and of texts that are not a verdict.
    """
    verdicts: list[str | None] = []
    errors: list[str | None] = []
    for answer in answers:
        verdict, error = None, answer.error
        if error is None:
            try:
                verdict = json.dumps(verdict_of(answer.text or "", schema), ensure_ascii=False)
            except InvalidVerdict as found:
                is_cut = answer.finish_reason == "length"
                error = f"{found}. The answer was cut at max_tokens={max_tokens}: raise it." if is_cut else str(found)
        verdicts.append(verdict)
        errors.append(error)
    return verdicts, errors
