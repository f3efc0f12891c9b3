"""Tokenizers from a model's folder, or trained on the data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyarrow import fs

from forebay.data.preparation.progress import tell
from forebay.data.transform.fingerprint.values import digest
from forebay.errors import InvalidOption, whole_number
from forebay.llm.chat.named import CHATML, marks_of, template_named
from forebay.llm.source.folders import local_copy, small_files_of
from forebay.runtime.extras import extra_package
from forebay.runtime.foreign_code import replaced_errors
from forebay.runtime.formatting import count_text
from forebay.storage.atomic import read_small
from forebay.storage.globs import children

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Pad, the beginning of a message and its end, in the tokenizer that is trained on the data."""
TRAINED_VERSION = 1
LEAST_VOCABULARY = 259
"""All bytes and the special tokens."""
_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt"),
)
"""Files of a model's folder that decide how it splits text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """Tokenizer of a dataset, by its origin.

    Attributes:
        folder: Folder of a model. None: a byte-level BPE tokenizer is trained on the data when it is prepared.
        trained: Text of a tokenizer that was trained on other data, which is used instead (`PreparedTokens.spec`).
        template: Chat template: a name such as "qwen3", a Jinja text, or None for the tokenizer's own.
        vocab_size: Most entries of a tokenizer that is trained.
        new_tokens: Special tokens that are added to the tokenizer of the folder, such as the marks of a chat format.
    """

    folder: str | None = None
    trained: str | None = None
    template: str | None = None
    vocab_size: int = 2048
    new_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        whole_number("vocab_size", self.vocab_size, least=LEAST_VOCABULARY)
        object.__setattr__(self, "new_tokens", tuple(self.new_tokens))
        _check_new_tokens(self.new_tokens, self.folder)
        assert self.template_text is not None or self.template is None  # raises for an unknown name

    @property
    def template_text(self) -> str | None:
        """Jinja text of the template, or None."""
        return self.template if self.template is None or "{" in self.template else template_named(self.template)

    def identity(self) -> Mapping[str, str]:
        """Everything that decides how text is split, besides the data.

        Reads the folder's tokenizer files.

        Raises `InvalidOption` for a folder without a tokenizer.
        """
        facts = {"template": digest((self.template_text or "").encode())}
        if self.trained is not None:
            return {**facts, "tokenizer": digest(self.trained.encode())}
        if self.folder is None:
            return {**facts, "tokenizer": f"trained {TRAINED_VERSION}, at most {self.vocab_size} entries"}
        contents = [(name, digest(data)) for name, data in tokenizer_files(self.folder).items()]
        return {**facts, "tokenizer": digest(repr([*contents, *self.new_tokens]).encode())}


def tokenizer(
    model: str = "tiny", *, template: str | None = None, new_tokens: str | Sequence[str] = ()
) -> TokenizerSpec:
    """Tokenizer of `model`.

    A folder with `tokenizer.json`, or "tiny" for a tokenizer that is trained on the data. `new_tokens` are special
    tokens that it gets, also as text: "<|tool|>,<|end|>".

    Raises `InvalidOption` for a folder without a tokenizer, an unknown template, and new tokens that cannot be added.
    """
    added = new_tokens.split(",") if isinstance(new_tokens, str) and new_tokens else new_tokens
    folder = None if model == "tiny" else model
    spec = TokenizerSpec(folder=folder, template=template, new_tokens=tuple(each.strip() for each in added))
    if spec.folder is not None:
        tokenizer_files(spec.folder)
    return spec


def tokenizer_files(folder: str) -> dict[str, bytes]:
    """Contents of the tokenizer files in a model's folder.

    By name. Raises `InvalidOption` if there are none.
    """
    location = small_files_of(folder)
    present = {info.base_name: info for info in children(location.fs, location.path) if info.type == fs.FileType.File}
    names = [name for name in _FILES if name in present]
    if not {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}.intersection(names):
        seen = ", ".join(sorted(present)[:10]) or "no files"
        raise InvalidOption(
            f"{location.uri} has no tokenizer: it needs tokenizer.json (or tokenizer.model), and holds {seen}. Give "
            "the folder of a Hugging Face model, as save_pretrained() writes it.",
            path=location.uri,
        )
    return {name: read_small(location.child(name)) for name in names}


def load_folder(folder: str, template: str | None = None, new_tokens: Sequence[str] = ()) -> Any:
    """Load the tokenizer of a local folder or a copy.

    Uses no network, and runs no code of the folder.

    Without a pad token, the end token pads. `new_tokens` become its last entries. Raises `InvalidOption` for a
    tokenizer that cannot be loaded, has neither a pad nor an end token, or does not give offsets, and for a new token
    that it has already.
    """
    transformers = import_transformers()
    refusal = partial(_unloadable, folder)
    with replaced_errors(refusal):
        found = transformers.AutoTokenizer.from_pretrained(
            # Not the default, which asks the user at a terminal.
            local_copy(folder, with_weights=False),
            local_files_only=True,
            trust_remote_code=False,
        )
    if not found.is_fast:
        raise InvalidOption(
            f"the tokenizer of {folder} has no fast version, which tells where in the text a token lies. Add a "
            "tokenizer.json.",
            path=folder,
        )
    if new_tokens:
        _add_tokens(
            found, folder, [transformers.AddedToken(each, special=True, normalized=False) for each in new_tokens]
        )
    return with_pad_and_template(found, folder, template)


def load_tokenizer(spec: TokenizerSpec) -> Any:
    """Load the tokenizer of a spec.

    From its folder, or from its trained text. Raises as `load_folder`.
    """
    if spec.trained is not None:
        return from_text(spec.trained)
    if spec.folder is None:
        raise InvalidOption("this tokenizer is trained on data, and was not yet. Give PreparedTokens.spec(tokenizer).")
    found = load_folder(spec.folder, spec.template_text, spec.new_tokens)
    if spec.template is not None and "{" not in spec.template:
        missing = sorted(marks_of(found.chat_template) - found.get_vocab().keys())
        if missing:
            raise InvalidOption(
                f"template={spec.template!r} writes {missing[0]!r}, which is no token of the tokenizer of "
                f"{spec.folder}: the model would never stop there. Give the template of the model's family, a Jinja "
                f"text that ends an answer with {{{{ eos_token }}}}, or new_tokens={','.join(missing)}.",
                template=spec.template,
            )
    return found


def with_pad_and_template(found: Any, name: str, template: str | None) -> Any:
    """Set the pad token and the given template.

    Returns the same tokenizer. Raises `InvalidOption` if it cannot have a pad token.
    """
    if found.eos_token_id is None:
        raise InvalidOption(f"the tokenizer of {name} has no end token (eos_token). Set it in tokenizer_config.json.")
    if found.pad_token_id is None:
        tell(f"the tokenizer of {name} has no pad token: its end token {found.eos_token!r} pads")
        found.pad_token = found.eos_token
    if template is not None:
        found.chat_template = template
    return found


def train_tokenizer(texts: Iterable[str], spec: TokenizerSpec) -> Any:
    """Train a byte-level BPE tokenizer with the ChatML template.

    Equal texts in equal order give equal tokenizers.
    """
    transformers = import_transformers()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - an extra

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    pad, begin, end = SPECIAL
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=begin, eos_token=end, pad_token=pad)
    made.chat_template = spec.template_text or CHATML
    return made


def to_text(found: Any) -> str:
    """JSON text of a trained tokenizer, for `from_text`."""
    return json.dumps({"tokenizer": found.backend_tokenizer.to_str(), "template": found.chat_template})


def from_text(text: str) -> Any:
    """Trained tokenizer from its text."""
    transformers = import_transformers()
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

    facts = json.loads(text)
    pad, begin, end = SPECIAL
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(facts["tokenizer"]), bos_token=begin, eos_token=end, pad_token=pad
    )
    made.chat_template = facts["template"]
    return made


def _check_new_tokens(new_tokens: Sequence[str], folder: str | None) -> None:
    given = f"new_tokens={','.join(new_tokens)}"
    if new_tokens and folder is None:
        raise InvalidOption(
            f"{given}: the tokenizer of model='tiny' is trained on the data, and has no other tokens. Give a model in "
            "a folder, or leave new_tokens out.",
            option="new_tokens",
        )
    if wrong := [each for each in new_tokens if not each.strip() or new_tokens.count(each) > 1]:
        why = f"names {wrong[0]!r} twice" if wrong[0].strip() else "has an empty name"
        raise InvalidOption(f"{given} {why}. Give different texts, such as '<|tool|>,<|end|>'.", option="new_tokens")


def _add_tokens(found: Any, folder: str, new_tokens: Sequence[Any]) -> None:
    """Add special tokens behind the entries of a tokenizer."""
    texts, first = [each.content for each in new_tokens], len(found)
    if known := [each for each in texts if each in found.get_vocab()]:
        raise InvalidOption(
            f"new_tokens: {known[0]!r} is an entry of the tokenizer of {folder} already. Leave it out of new_tokens.",
            option="new_tokens",
        )
    found.add_tokens(new_tokens, special_tokens=True)
    if found.convert_tokens_to_ids(texts) != list(range(first, len(found))):
        raise InvalidOption(
            f"new_tokens: the tokenizer of {folder} has {count_text(first)} entries whose numbers have gaps, and would "
            "number new ones beyond them. Use entries that it has for the chat format, or another model.",
            option="new_tokens",
        )


def check_sizes(num_entries: int, num_embeddings: int, name: str) -> None:
    """Raise `InvalidOption` if the tokenizer exceeds the model's embeddings."""
    if num_entries > num_embeddings:
        raise InvalidOption(
            f"the tokenizer has {count_text(num_entries)} entries, and the model {name} has embeddings for "
            f"{count_text(num_embeddings)}. Give the model's own tokenizer, or resize its embeddings.",
            entries=num_entries,
            embeddings=num_embeddings,
        )


def import_transformers() -> Any:
    """Import `transformers`.

    Raises `InvalidOption` with the install line if it is missing.
    """
    with extra_package("transformers", "A language model"):
        import transformers  # noqa: PLC0415 - an extra, which takes seconds to import
    # A worker's bars would be mixed with the lines of the run.
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _unloadable(folder: str, error: Exception) -> Exception:
    return InvalidOption(
        f"the tokenizer of {folder} cannot be loaded ({type(error).__name__}: {error}). Code in a model's folder is "
        "never run: give a tokenizer of the transformers library, with tokenizer.json.",
        path=folder,
    )
