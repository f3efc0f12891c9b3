"""Facts of a prepared dataset of token rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from forebay.data.manifest.prepared import Prepared
from forebay.errors import InvalidOption
from forebay.llm.source.tokenizers import TokenizerSpec, load_tokenizer
from forebay.llm.tokens import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTokens:
    """Token rows of a prepared dataset.

    Attributes:
        prepared: The dataset.
        seq_len: Tokens of a row.
        packing: Way in which documents fill rows.
        vocab_size: Entries of the tokenizer.
        counts: Counts of documents, tokens and targets.
        trained_tokenizer: Text of the tokenizer, if it was trained on the data.
        has_pairs: Whether each document is a pair of answers, for `llm.prefer`.
        has_labels: Whether each document is an answer with a label, for `llm.prefer` with `loss="kto"`.
        reference: Most texts of a row whose log-probabilities are stored, or None if none are.
    """

    prepared: Prepared
    seq_len: int
    packing: str
    vocab_size: int
    counts: TokenCounts
    trained_tokenizer: str | None
    has_pairs: bool = False
    has_labels: bool = False
    reference: int | None = None

    def spec(self, spec: TokenizerSpec) -> TokenizerSpec:
        """Tokenizer for other data of the same model.

        `spec`, or the tokenizer that was trained on this data.
        """
        return replace(spec, trained=self.trained_tokenizer)

    def tokenizer(self, spec: TokenizerSpec) -> Any:
        """Load the dataset's tokenizer.

        `spec` is the spec of the dataset's source.
        """
        return load_tokenizer(self.spec(spec))


def prepared_tokens(prepared: Prepared) -> PreparedTokens:
    """Facts of `prepared`.

    Raises `InvalidOption` for a dataset that is not made of token rows.
    """
    facts = prepared.facts
    if "seq_len" not in facts:
        raise InvalidOption(
            f"{prepared.folder} holds no token rows. Prepare them with fb.prepare(llm.TokenSource(...), into=...).",
            path=prepared.folder,
        )
    return PreparedTokens(
        prepared=prepared,
        seq_len=facts["seq_len"],
        packing=facts["packing"],
        vocab_size=facts["vocab_size"],
        counts=TokenCounts.of(facts["counts"]),
        trained_tokenizer=facts["trained_tokenizer"],
        has_pairs=facts.get("has_pairs", False),
        has_labels=facts.get("has_labels", False),
        reference=facts.get("reference"),
    )
