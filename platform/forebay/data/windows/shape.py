"""Shape of a window: steps of the past, look-aheads of the future, and how windows follow each other."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import InvalidOption, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowShape:
    """Steps of a window, relative to its start.

    The past is steps `[0, past)`. Look-ahead 1 is step `past + gap`. Without look-aheads a window predicts within its
    past, as language models do: then all steps are targets.

    Attributes:
        past: Steps that the model looks back on.
        ahead: Look-aheads, ascending, each from 1.
        gap: Steps between the past and look-ahead 1.
        stride: Steps between the starts of two windows.
        min_steps: Least real steps of the past. Windows at the start of a series with fewer than `past` are padded.
        shift: Move all windows of an epoch by a number of steps below `stride` that depends on the epoch.

    Raises:
        InvalidOption: A number that can never work.
    """

    past: int
    ahead: tuple[int, ...] = ()
    gap: int = 0
    stride: int = 1
    min_steps: int | None = None
    shift: bool = False

    def __post_init__(self) -> None:
        whole_number("past steps", self.past, least=1)
        whole_number("gap", self.gap)
        whole_number("stride", self.stride, least=1)
        if self.min_steps is not None:
            whole_number("min_steps", self.min_steps, least=1, most=self.past)
        if list(self.ahead) != sorted(set(self.ahead)) or any(step < 1 for step in self.ahead):
            raise InvalidOption(
                f"future steps={self.ahead!r}: give look-aheads of 1 or more, each once, in ascending order.",
                steps=self.ahead,
            )
        if self.gap and not self.ahead:
            raise InvalidOption(
                f"gap={self.gap} lies before a future, but there is none. Give fb.Horizon.", gap=self.gap
            )

    @property
    def least_steps(self) -> int:
        """Least real steps of the past."""
        return self.past if self.min_steps is None else self.min_steps

    @property
    def length(self) -> int:
        """Steps from the start of a window to the end of its last target."""
        return self.past + self.gap + (self.ahead[-1] if self.ahead else 0)

    @property
    def first_target(self) -> int:
        """Step of the first target. Without look-aheads 0."""
        return self.past + self.gap + self.ahead[0] - 1 if self.ahead else 0

    @property
    def most_shift(self) -> int:
        """Largest shift of an epoch."""
        return self.stride - 1 if self.shift else 0

    @property
    def needed_steps(self) -> int:
        """Least steps of a series that holds a window."""
        return self.length - self.past + self.least_steps + self.most_shift
