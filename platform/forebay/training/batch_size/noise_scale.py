"""Global batch that follows the noise of the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

import numpy as np

from forebay.data.loader.data import Data
from forebay.errors import InvalidOption, whole_number
from forebay.training.batch_size.gradient_samples import GradientSample, RankParts, Sampler, StepPairs
from forebay.training.batch_size.policy import TrainPosition
from forebay.training.state.setup import TrainSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """Double or halve the global batch by the noise scale.

    It doubles if the noise scale is twice as large, and halves if half as large.

    The noise scale is the batch at which the gradient's noise is as large as the gradient: tr(cov) / |mean|^2 over
    single rows (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", arXiv 1812.06162, appendix A). It
    is estimated from the gradients of two batch sizes: the ranks' parts and the whole, or, in a world of one, two
    successive steps and their mean. A world of one keeps a copy of the gradient for one step. Rows of one part must
    have equal weights, and the loss must be multiplied by `batch.weight`.

    Args:
        min_batch: Smallest global batch, in rows.
        max_batch: Largest global batch, in rows.
        every: Steps between two samples. Other steps cost nothing.
        horizon: Number of samples in an estimate, and between two decisions.

    Raises `InvalidOption` for bounds that are not an interval.
    """

    needs_whole: ClassVar[bool] = True

    min_batch: int
    max_batch: int
    every: int = 20
    horizon: int = 50

    def __post_init__(self) -> None:
        for option in ("min_batch", "max_batch", "every", "horizon"):
            object.__setattr__(self, option, whole_number(option, getattr(self, option), least=1))
        if self.min_batch > self.max_batch:
            raise InvalidOption(
                f"NoiseScale(min_batch={self.min_batch}, max_batch={self.max_batch}): give min_batch <= max_batch."
            )

    def validate(self, reduction: str, data: Data) -> None:
        """Check the reduction and the bounds.

        The estimate needs averaged gradients, and `data` must allow both bounds.

        Raises `InvalidOption` otherwise.
        """
        if reduction != "mean":
            raise InvalidOption(
                f'batch=NoiseScale(...) compares each rank\'s gradient with their mean, but reduction="{reduction}" '
                'does not leave the mean of the ranks. Use reduction="mean", or batch=BatchSchedule(...).'
            )
        for option in ("min_batch", "max_batch"):
            rows = getattr(self, option)
            data.validate_batch_size(f"batch=NoiseScale({option}={rows})", rows)

    def attach(self, setup: TrainSetup) -> LiveNoiseScale:
        """See `BatchPolicy`.

        Raises `InvalidOption` for a model with `fb.Table` modules.
        """
        if setup.parts.tables:
            names = ", ".join(table.name for table in setup.parts.tables)
            raise InvalidOption(
                f"NoiseScale compares gradients of parameters, and the rows of {names} are none: the scale would leave "
                "them out. Use fb.batch_size.BatchSchedule, or nn.Embedding for these tables."
            )
        return LiveNoiseScale(self, setup)

    def next_batch(self, global_batch: int, noise_scale: float) -> int:
        """Return the rows per step for this noise scale.

        After steps of `global_batch` rows.
        """
        if noise_scale >= 2 * global_batch:
            return max(min(2 * global_batch, self.max_batch), global_batch)
        if noise_scale <= global_batch / 2:
            return min(max(global_batch // 2, self.min_batch), global_batch)
        return global_batch


@dataclass(frozen=True, slots=True)
class Estimate:
    """Running means of trace and signal over about `horizon` samples.

    Their ratio is steadier than a mean of ratios.
    """

    trace: float = 0.0
    signal: float = 0.0
    samples: int = 0

    @property
    def noise_scale(self) -> float:
        """Noise scale in rows. Infinite if no signal is measurable."""
        return self.trace / self.signal if self.signal > 0 else math.inf

    def with_sample(self, sample: GradientSample, horizon: int) -> Estimate:
        """Return the estimate with one more sample."""
        samples = self.samples + 1
        share = 1 / min(samples, horizon)
        return Estimate(
            trace=self.trace + share * (sample.trace - self.trace),
            signal=self.signal + share * (sample.signal - self.signal),
            samples=samples,
        )


class LiveNoiseScale:
    """Active `NoiseScale` on one rank.

    Its samples since the last checkpoint, and the estimate of all ranks.
    """

    def __init__(self, options: NoiseScale, setup: TrainSetup) -> None:
        parameters = setup.model.parameters()
        self._sampler: Sampler = (
            RankParts(parameters, setup.world_size) if setup.world_size > 1 else StepPairs(parameters)
        )
        self._options = options
        self._steps, self._since_change = 0, 0
        self.estimate = Estimate()

    def step(self, *, rows: int, size: int) -> None:
        """See `LiveBatchPolicy`.

        Raises `BadJob` if one step calls `backward()` several times.
        """
        self._sampler.finish_step(rows=rows, size=size)
        self._steps += 1
        if self._steps % self._options.every == 0:
            self._sampler.start()

    def measured(self) -> tuple[float, ...]:
        """Fields of `GradientSample`, sample by sample."""
        return tuple(number for sample in self._sampler.pop_samples() for number in astuple(sample))

    def global_batch(self, place: TrainPosition, measured: Sequence[tuple[float, ...]]) -> int:
        """See `LiveBatchPolicy`."""
        for sample in _over_ranks(measured):
            if sample.is_sound:
                self.estimate = self.estimate.with_sample(sample, self._options.horizon)
                self._since_change += 1
        if self._since_change < self._options.horizon:
            return place.global_batch
        batch = self._options.next_batch(place.global_batch, self.estimate.noise_scale)
        if batch != place.global_batch:
            self._since_change = 0
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Estimate, and the step of the next sample.

        In a world of one, the first step of a pair is not saved.
        """
        estimate = (self.estimate.trace, self.estimate.signal, self.estimate.samples)
        return {"steps": self._steps, "since_change": self._since_change, "estimate": estimate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `LiveMonitor`."""
        self._steps, self._since_change = state["steps"], state["since_change"]
        self.estimate = Estimate(*state["estimate"])
        self._sampler.discard()
        if self._steps % self._options.every == 0 and self._steps:
            self._sampler.start()


def _over_ranks(measured: Sequence[tuple[float, ...]]) -> Iterator[GradientSample]:
    """Combine the ranks' measurements into one sample per step."""
    ranks = np.array(measured, dtype=np.float64).reshape(len(measured), -1, 4)
    for small, parts, large, rows in zip(*ranks[:, :, :2].sum(0).T, *ranks[0, :, 2:].T, strict=True):
        yield GradientSample(float(small), float(parts), float(large), float(rows))
