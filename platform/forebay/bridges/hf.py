"""Use a `Loader` with the Hugging Face `Trainer`.

And with its subclasses (e.g. TRL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from forebay.bridges.torch import as_dataset
from forebay.data.loader.batch import Batch
from forebay.data.loader.loader import Loader
from forebay.data.plan.cursor import Cursor
from forebay.errors import CursorMismatch, InvalidOption
from forebay.runtime.extras import extra_package

if TYPE_CHECKING:
    TrainerMethods = Any  # a mixin: the trainer beside it has the methods that are called here
else:
    TrainerMethods = object


class TrainerMixin(TrainerMethods):  # type: ignore[misc]
    """Train a `Trainer` on `train_loader`, with its cursor in checkpoints.

    ```python
    class ClickTrainer(fb.bridges.hf.TrainerMixin, Trainer): ...
    ClickTrainer(model, TrainingArguments("out", ignore_data_skip=True), train_loader=loader).train()
    ```

    The cursor after the last trained batch is in `trainer_state.json`. Names of arrays are arguments of the model.

    Raises:
        InvalidOption: Ranks get parts of different sizes, the loader belongs to another rank, `ignore_data_skip` is
            not set, or gradient accumulation does not divide the batches of an epoch.
    """

    def __init__(self, *arguments: Any, train_loader: Loader, **options: Any) -> None:
        self._train_dataset = as_dataset(train_loader)
        self._start = self.trained = train_loader.cursor()
        super().__init__(*arguments, **options)
        _validate_arguments(self.args, train_loader)
        self.add_callback(_cursor_callback(self))

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, on the host.

        `Accelerator.prepare` would divide them among the ranks once more.
        """
        return DataLoader(self._train_dataset, batch_size=None)

    def training_step(self, model: Any, inputs: Batch, *rest: Any, **options: Any) -> Any:
        """Train on a batch, then advance the cursor.

        The Trainer takes batches ahead of their steps.
        """
        loss = super().training_step(model, inputs, *rest, **options)
        epoch, position = (inputs.epoch + 1, 0) if inputs.ends_epoch else (inputs.epoch, inputs.position + inputs.size)
        self.trained = Cursor(
            plan_id=self._start.plan_id, epoch=epoch, position=position, global_batch=self._start.global_batch
        )
        return loss

    def seek(self, cursor: Cursor | None) -> None:
        """Continue from `cursor`.

        None: where the loader was when this trainer was made.
        """
        self.trained = cursor or self._start
        loader = self._train_dataset.loader
        loader.seek(self.trained)
        _validate_steps(self.args, loader.batches_left, "left in the epoch")

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Number of rows, which the Trainer counts in its speed."""
        loader = self._train_dataset.loader
        if dataloader.dataset is not self._train_dataset:
            return int(super().num_examples(dataloader))
        return loader.plan.num_rows - loader.data.dropped_rows

    def get_total_train_batch_size(self, args: Any) -> int:
        """Rows of a step, instead of those of `per_device_train_batch_size`."""
        return self._train_dataset.loader.global_batch * int(args.gradient_accumulation_steps)


def _validate_arguments(args: Any, loader: Loader) -> None:
    ours = (loader.world.rank, loader.world.size)
    if ours != (args.process_index, args.world_size):
        raise InvalidOption(
            f"train_loader is of rank {ours[0]} of {ours[1]}, but this process is rank {args.process_index} of "
            f"{args.world_size}. Give fb.Loader(world=fb.World(rank=args.process_index, size=args.world_size))."
        )
    if not args.ignore_data_skip:
        raise InvalidOption(
            "ignore_data_skip=False: a resumed Trainer would skip batches that the cursor has already passed. Give "
            "TrainingArguments(ignore_data_skip=True)."
        )
    _validate_steps(args, len(loader), "of an epoch")


def _validate_steps(args: Any, batches: int, which: str) -> None:
    if batches % args.gradient_accumulation_steps:
        raise InvalidOption(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps} does not divide the {batches} batches "
            f"{which}: the steps of a resumed epoch would differ. Give one that divides it, or another global_batch."
        )


def _cursor_callback(trainer: TrainerMixin) -> Any:
    with extra_package("transformers", "fb.bridges.hf"):
        from transformers.trainer_callback import ExportableState, TrainerCallback  # noqa: PLC0415 - an extra

    class LoaderCursor(TrainerCallback, ExportableState):  # type: ignore[misc]
        """Cursor among the callback states that the Trainer saves."""

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"cursor": trainer.trained.to_dict()}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - of the hook
            saved = state.stateful_callbacks.get("LoaderCursor", {}).get("attributes", {}).get("cursor")
            if state.global_step and not saved:
                raise CursorMismatch("This checkpoint was saved without the cursor of a loader. Start without it.")
            trainer.seek(Cursor.from_dict(saved) if state.global_step else None)

    return LoaderCursor()
