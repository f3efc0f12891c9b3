"""Results of an examination so far, judged even if it ends early."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from forebay.doctor.findings.measurements import Contention, Round
from forebay.doctor.findings.ways import RoundKind, Way
from forebay.doctor.rounds.production import Produced, UnfinishedBlock
from forebay.doctor.rounds.thread_time import ThreadTime


class Activity(StrEnum):
    """Phase or call that an examination is in."""

    READ = "reading the first row groups"
    DECODE = "decoding a row group, which compiles kernels once on a machine"
    MAKE = "making the first blocks"
    SET_UP = "the train function, before its first batch"
    STEP = "a step of the train function"
    WAIT = "the wait for a batch"
    PROBE = "measuring the transform alone"


@dataclass(slots=True)
class Found:
    """Results so far, and the present activity.

    Attributes:
        since: Time at which `activity` began, by the clock of the examination.
        stages: Stages of a pass, of those that the time allows.
        step_s: Seconds of the last step that ended, also of one before the first round.
        sample_s: Seconds in which rows of the sample were read, `sample_rows` of them.
        making: Seconds of the steps of the first blocks, of `made_rows`. `unfinished` is the block that is made now.
    """

    rounds: list[Round] = field(default_factory=list)
    produced: dict[RoundKind, list[Produced]] = field(default_factory=dict)
    probes: dict[str, ThreadTime] = field(default_factory=dict)
    idle: dict[Way, list[float]] = field(default_factory=dict)
    activity: Activity = Activity.READ
    since: float = 0.0
    stages: tuple[RoundKind, ...] = ()
    step_s: float = 0.0
    sample_s: float = 0.0
    sample_rows: int = 0
    making: dict[str, float] = field(default_factory=dict)
    made_rows: int = 0
    unfinished: UnfinishedBlock | None = None

    @property
    def contention(self) -> Contention:
        """Blocked shares of the transform, over all rounds."""
        return Contention(**{name: time.blocked_share for name, time in self.probes.items()})

    def begin(self, activity: Activity, now: float) -> None:
        """Note what begins now."""
        self.activity, self.since = activity, now

    @property
    def compute_s(self) -> float:
        """Seconds of a step on the device, by rounds or an earlier step."""
        rounds = [each.step_s for each in self.rounds if each.stage == RoundKind(way=Way.COMPUTE)]
        return median(rounds) if rounds else self.step_s
