"""Setting that every system of the bench of language models receives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LlmSetting:
    """One turn of one system: the same documents, weights and optimizer for all.

    Attributes:
        chats: JSON Lines of `messages`.
        rows: The documents as packed rows in Forebay's order, `.npz` of input_ids, labels and position_ids.
        model: Folder of the model and its tokenizer.
        work: Folder that a second run finds again: caches, prepared data, checkpoints.
        snapshots: Folder for the weights after every `snapshot_every` steps. Empty: none are kept.
        seq_len: Tokens of a packed row, and of the longest document.
        step_rows: Packed rows of a step.
        pass_rows: Packed rows of one pass.
        step_documents: Documents of a step where documents are padded. About as many tokens as `step_rows` have.
        pass_documents: Documents of one padded pass.
        pad: Token id that is in no document.
        steps: Steps after which the turn ends.
        snapshot_every: Steps between two snapshots of the weights.
        checkpoint_at: Step after which a checkpoint is saved. 0: none is saved.
        kill: Whether the process kills itself after the last step.
        resume: Whether to go on from the checkpoint in `work`.
        record: Whether the documents of each step are recorded.
        variant: Variant of the system.
        began: Time at which the process was started.
        rate: Learning rate.
        processes: Workers that train together.
    """

    chats: str
    rows: str
    model: str
    work: str
    seq_len: int
    step_rows: int
    pass_rows: int
    step_documents: int
    pass_documents: int
    pad: int
    steps: int
    snapshots: str = ""
    snapshot_every: int = 4
    checkpoint_at: int = 0
    kill: bool = False
    resume: bool = False
    record: bool = False
    variant: str = ""
    began: float = 0.0
    rate: float = 1e-3
    processes: int = 1

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return int(os.environ.get("RANK", "0"))

    def accumulation(self, rows: int, of_pass: int) -> int:
        """Passes of a step on each process, for `rows` rows of a step in passes of `of_pass`."""
        return rows // (of_pass * self.processes)

    def common(self, rows: int, of_pass: int) -> dict[str, Any]:
        """Arguments of transformers' `TrainingArguments`, and of all that are derived from it."""
        saving = {"save_strategy": "no"}
        if self.checkpoint_at:
            saving = {"save_strategy": "steps", "save_steps": self.checkpoint_at}
        return saving | {
            "output_dir": f"{self.work}/out",
            "per_device_train_batch_size": of_pass,
            "gradient_accumulation_steps": self.accumulation(rows, of_pass),
            "num_train_epochs": 100,
            "learning_rate": self.rate,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 1.0,
            "weight_decay": 0.0,
            "optim": "adamw_torch",
            "logging_steps": 1,
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 7,
            "bf16": False,
        }
