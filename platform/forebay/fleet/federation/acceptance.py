"""Acceptance of submissions: whose they are, and what they may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import JobFiles, StoredSubmission
from forebay.fleet.federation.audit import NoteLine, no_audit
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.lifecycle.journal import JournalEntry
from forebay.fleet.lifecycle.states import JobQueued, LiveAttempt
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.fleet.submitter import FileOwner, Submitter, nested
from forebay.runtime.uris import has_local_name, split_options, with_options
from forebay.storage.atomic import UMASK
from forebay.storage.credentials import without_credentials
from forebay.storage.filesystem import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Submitter of a submission, what vouches for that, and why it is refused.

    `submitter` is None in a fleet without submitters, and for one that the fleet file does not name.
    """

    submitter: Submitter | None = None
    by: str = ""
    refusal: str | None = None


class Acceptance:
    """Judges submissions by a fleet file. Sends no request.

    Attributes:
        fleet: The fleet, with its clusters as they are described now.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._storages = {each.name: [named_storage(uri) for uri in each.storage] for each in fleet.submitter}

    def followed(self, given: Sequence[str]) -> tuple[str, ...]:
        """Return the storages to follow: `given`, and the submitters'.

        Raises `InvalidOption` if there is none, or if one lies in another: its submitter could write a job there.
        """
        found = list(dict.fromkeys([*given, *(uri for each in self._storages.values() for uri in each)]))
        by_uri = {named_storage(uri): uri for uri in reversed(found)}
        if not by_uri:
            raise InvalidOption("no storage is followed. Give --storage, or storage of a [[submitter]].")
        for one, other in combinations(by_uri if self.fleet.submitter else (), 2):
            if nested([one], [other]):
                raise InvalidOption(
                    f"the storages {one} and {other} lie in each other: whoever may write the one could submit in "
                    "the other. Give each its own prefix."
                )
        return tuple(uri for uri in found if uri in by_uri.values())

    def judge(self, files: JobFiles, found: StoredSubmission) -> Judgement:
        """Decide on a submission."""
        if not self.fleet.submitter:
            return Judgement()
        spec, storage = found.submission.spec, named_storage(files.storage)
        submitter, by = self._submitter(storage, found.owner)
        named = (named_storage(spec.storage), spec.name, found.submission.number)
        if named != (storage, files.name, found.number):
            # Else it would claim, and fetch code, where another submitter writes.
            where = f"submission {named[2]} of {named[1]!r} in {named[0]}"
            return Judgement(submitter=submitter, by=by, refusal=f"it says that it is {where}. Submit it there.")
        if submitter is None and by:
            return Judgement(refusal=by)
        return Judgement(submitter=submitter, by=by, refusal=self.fleet.refusal(submitter, spec))

    def foresee(self, spec: JobSpec) -> Judgement:
        """Decide on a job that this user is about to submit."""
        if not self.fleet.submitter:
            return Judgement()
        owner = FileOwner(uid=os.getuid(), mode=0o666 & ~UMASK) if has_local_name(spec.storage) else None
        submitter, by = self._submitter(named_storage(spec.storage), owner)
        if submitter is None and by:
            return Judgement(refusal=by)
        return Judgement(submitter=submitter, by=by, refusal=self.fleet.refusal(submitter, spec))

    def shared_accounts(self) -> Iterator[str]:
        """Yield who could write the submissions of whom by the code of a job.

        Their pods have the same access to storage.
        """
        for cluster in (each for each in self.fleet.cluster if each.sku):
            sharing: dict[tuple[str | None, str], list[str]] = {}
            for each in self.fleet.submitter:
                secrets = cluster.secret_env if each.secret_env is None else each.secret_env
                access = (each.service_account or cluster.service_account, repr(sorted(secrets.items())))
                sharing.setdefault(access, []).append(each.name)
            for (account, _), names in sharing.items():
                if len(names) > 1:
                    yield (
                        f"pods of {', '.join(names)} have one access to storage in {cluster.name} (account "
                        f"{account or 'default'}): a job of one can write what is a submission of another. Give each "
                        "its service_account or secret_env."
                    )

    def _submitter(self, storage: str, owner: FileOwner | None) -> tuple[Submitter | None, str]:
        """Return the first entry that fits, and what vouches for it, or why none does."""
        for each in self.fleet.submitter:
            if each.is_default or (each.storage and storage not in self._storages[each.name]):
                continue
            if not each.uids:
                return each, f"storage {storage}"
            if owner is not None and owner.uid in each.uids:
                if not owner.is_alone:
                    mode = f"{owner.mode & 0o777:o}"
                    why = f"others than its owner may write the file (mode {mode}). Submit with umask 022."
                    return None, why
                return each, f"uid {owner.uid}"
        return next((each for each in self.fleet.submitter if each.is_default), None), ""


class GpuShares:
    """GPUs of each submitter's live attempts, within one round."""

    def __init__(self, entries: Iterable[JournalEntry], owners: Mapping[str, Submitter]) -> None:
        self._owners = owners
        self._used: dict[str, int] = {}
        for entry in entries:
            if isinstance(entry.state, LiveAttempt):
                self.take(entry)

    def take(self, entry: JournalEntry) -> None:
        """Count the largest size of a task."""
        owner = self._owner(entry)
        if owner is not None:
            self._used[owner.name] = self._used.get(owner.name, 0) + most_gpus(entry.task)

    def refusal(self, entry: JournalEntry) -> str | None:
        """Reason why a queued task waits for others of its submitter, or None."""
        owner = self._owner(entry)
        if owner is None or owner.most_gpus is None or not isinstance(entry.state, JobQueued):
            return None
        used = self._used.get(owner.name, 0)
        if used + most_gpus(entry.task) <= owner.most_gpus:
            return None
        return f"{owner.name} has {used} of its {owner.most_gpus} GPUs, and this task may need {most_gpus(entry.task)}"

    def _owner(self, entry: JournalEntry) -> Submitter | None:
        return self._owners.get(job_folder(entry.spec.storage, entry.spec.name))


def named_storage(uri: str) -> str:
    """Return a storage as it is compared, without its credentials.

    Opens no storage: those of other submitters may refuse this user.
    """
    if has_local_name(uri):
        return resolve(uri).uri
    folder, options = split_options(without_credentials(uri))
    scheme, _, rest = folder.partition("://")
    return with_options(f"{scheme.lower()}://{rest.rstrip('/')}", options)


@lru_cache(maxsize=16_384)
def job_folder(storage: str, name: str) -> str:
    """Folder of a job, however its storage is spelled."""
    return JobFiles(storage=storage, name=name).folder


def most_gpus(task: Task) -> int:
    """GPUs of a task at its largest size."""
    return task.workers.largest * task.workers.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversight:
    """Shares of submitters, and the audit, for a federation."""

    note: NoteLine = no_audit
    shares: Callable[[Iterable[JournalEntry]], GpuShares] = lambda entries: GpuShares(entries, {})


ANYBODY = Oversight()
"""No limits, and no audit."""
