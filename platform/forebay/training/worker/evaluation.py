"""AUC of a model on the held-out data."""

from __future__ import annotations

from torch import nn

from forebay.errors import BadJob
from forebay.training.worker.roc_area import RocArea, Scores, roc_areas
from forebay.training.worker.worker import Worker


def evaluate_auc(worker: Worker, model: nn.Module) -> dict[str, float]:
    """Area under the ROC curve on held-out data, for `fit(evaluate=)`.

    Returns `{"auc": ...}` of the model's logits for `batch["label"]` (0 or 1) on the job's held-out data.

    The area is exact for logits of any size and dtype. Equal logits count half. The result is the same on every rank,
    and the same bits for every world size, if the logits are. A rank keeps 6 bytes of each of its rows (10 with float64
    logits). Over a mixture, `auc/NAME` is the area of each dataset, and `auc` the area of all rows.

    The area is NaN if a logit or a label is NaN, or a label is missing. A `Warned` event says which.

    Raises `BadJob` for a job without held-out data, batches without `"label"`, labels of more than two classes, or
    another number of logits than labels.
    """
    batches = worker.held_out()
    if batches is None:
        raise BadJob("evaluate_auc needs held-out data, and this job has none. Set held_out= in the Job.")
    names: tuple[str, ...] = ()
    scores: Scores | None = None
    for batch in batches:
        if "label" not in batch:
            raise BadJob(
                f"evaluate_auc reads batch['label'], and the held-out batches have {', '.join(map(repr, batch))}. Name "
                "the label so in the transform."
            )
        logits = model(batch)  # Also for a dummy row: all ranks must call a model equally often.
        names = batch.names
        scores = scores or Scores(max(len(names), 1))
        if batch.weight > 0:
            scores.add(logits, batch["label"], 0 if batch.source is None else batch.source)
    *each, total = roc_areas(scores or Scores(), worker.world, worker.all_reduce)
    by_name = dict(zip((f"auc/{name}" for name in names), each, strict=False))
    for name, area in {"auc": total, **by_name}.items():
        if reason := _why_nan(area):
            worker.warn(f"evaluate_auc: {name} is NaN, because {reason}.")
    return {name: area.value for name, area in {"auc": total, **by_name}.items()}


def _why_nan(area: RocArea) -> str:
    """Reason that an area is NaN. Empty if it is finite."""
    rows = area.negatives + area.positives + area.num_nan
    if area.num_nan:
        return f"the logit or the label of {area.num_nan:,} of {rows:,} held-out rows is NaN"
    if not area.negatives or not area.positives:
        return f"no label of {rows:,} held-out rows is {int(not area.positives)}"
    return ""
