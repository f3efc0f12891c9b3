"""Undocumented names of Ray that Forebay uses.

A release of Ray may move them.

A name is `module:path`. Its last part may also be an attribute that the methods of a class set. The tested range is in
`runtime/extras.py`, and ADR 0109 has what was run on each version. tests/unit/ray_cluster/test_private_names.py fails
when a module of Forebay uses a private name that is not listed for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module

from forebay.runtime.extras import unsupported_ray

EVERYTHING = "Forebay on Ray"
RAY_TRAIN = "driver='ray'"
SWEEP = "run_sweep"
RAY_DATA = "from_ray_data"
SMALL_NODES = "SmallNodes"

_EXECUTION = "ray.train.v2._internal.execution"
_GROUP = f"{_EXECUTION}.worker_group.worker_group:WorkerGroup"
_TUNE_CONTROLLER = "ray.tune.execution.tune_controller:TuneController"
_PREPROCESSOR = "ray.data.preprocessor:SerializablePreprocessorBase"
_POPULATION = "ray.tune.schedulers:PopulationBasedTraining"

PRIVATE_NAMES: Mapping[str, tuple[str, ...]] = {
    EVERYTHING: (
        "ray._private.state:state.get_draining_nodes",
        "ray._private.services:find_gcs_addresses",
        "ray._private.node:Node.kill_all_processes",
    ),
    RAY_TRAIN: (
        "ray.train.torch:TorchTrainer._initialize_and_run_controller",
        "ray.train.torch:TorchTrainer._create_default_callbacks",
        "ray.train.v2._internal.callbacks.accelerators:AcceleratorSetupCallback",
        "ray.train.v2._internal.callbacks.datasets:DatasetsCallback",
        "ray.train.v2._internal.callbacks.placement_group_callback:PlacementGroupCleanerCallback",
        "ray.train.v2._internal.exceptions:WorkerGroupStartupFailedError",
        f"{_EXECUTION}.controller:TrainController.worker_group_cls",
        f"{_EXECUTION}.failure_handling:DefaultFailurePolicy.make_decision",
        f"{_EXECUTION}.failure_handling:FailureDecision.RETRY",
        f"{_EXECUTION}.failure_handling:FailureDecision.RAISE",
        f"{_EXECUTION}.scaling_policy:NoopDecision",
        f"{_EXECUTION}.scaling_policy:ResizeDecision",
        f"{_EXECUTION}.scaling_policy:ScalingPolicy.make_decision_for_non_running_worker_group",
        f"{_EXECUTION}.scaling_policy:ScalingPolicy.make_decision_for_running_worker_group",
        f"{_EXECUTION}.scaling_policy:ScalingPolicy._get_num_workers_for_resource_request",
        f"{_EXECUTION}.worker_group.placement_group_handle:PlacementGroupHandle",
        f"{_EXECUTION}.worker_group.worker:RayTrainWorker.execute",
        f"{_EXECUTION}.worker_group.worker:RayTrainWorker.get_metadata",
        f"{_EXECUTION}.worker_group.worker:Worker",
        f"{_GROUP}._start_impl",
        f"{_GROUP}._create_placement_group",
        f"{_GROUP}._create_workers",
        f"{_GROUP}._assign_worker_ranks",
        f"{_GROUP}._get_worker_runtime_env",
        f"{_GROUP}._worker_group_state",
        f"{_GROUP}._clear_state",
        f"{_GROUP}.has_started",
    ),
    SWEEP: (
        "ray.tune.experiment.config_parser:_create_trial_from_spec",
        "ray.tune.experiment.config_parser:_make_parser",
        "ray.tune.experiment:Trial.handle_error",
        "ray.tune.experiment:Trial.max_failures",
        f"{_TUNE_CONTROLLER}._actor_force_cleanup_timeout",
        f"{_TUNE_CONTROLLER}._maybe_cache_trial_actor",
        f"{_TUNE_CONTROLLER}._trial_task_failure",
        f"{_TUNE_CONTROLLER}._resetting_trials",
        f"{_TUNE_CONTROLLER}._schedule_trial_stop",
        f"{_TUNE_CONTROLLER}._staged_trials",
        f"{_TUNE_CONTROLLER}._unstage_trial_with_resources",
        f"{_TUNE_CONTROLLER}._set_trial_status",
        f"{_TUNE_CONTROLLER}.get_live_trials",
        "ray.tune.impl.placeholder:_get_placeholder",
        "ray.tune.impl.placeholder:_FunctionResolver.TOKEN",
        "ray.tune.impl.placeholder:_RefResolver.TOKEN",
        "ray.tune.progress_reporter:TrialProgressCallback._print",
        "ray.tune.schedulers:HyperBandScheduler._hyperbands",
        "ray.tune.schedulers:HyperBandScheduler._process_bracket",
        f"{_POPULATION}._synch",
        f"{_POPULATION}._trial_state",
        f"{_POPULATION}._perturbation_interval",
        f"{_POPULATION}._next_perturbation_sync",
    ),
    RAY_DATA: (
        "ray.data.preprocessors.version_support:UnknownPreprocessorError",
        "ray.data.preprocessors.version_support:_lookup_class",
        "ray.data.preprocessors.utils:StatComputationPlan",
        f"{_PREPROCESSOR}._get_serializable_fields",
        f"{_PREPROCESSOR}._set_serializable_fields",
        f"{_PREPROCESSOR}._get_stats",
        f"{_PREPROCESSOR}._set_stats",
        f"{_PREPROCESSOR}._stat_computation_plan",
    ),
    SMALL_NODES: (
        "ray._raylet:GcsClient",
        "ray.cluster_utils:Cluster",
        "ray.core.generated.autoscaler_pb2:DrainNodeReason",
    ),
}


def check_ray(what: str = EVERYTHING) -> None:
    """Look up every name that `what` uses.

    Takes milliseconds once Ray is imported. A Ray that is first imported here shows no log of a lost raylet.

    Raises `UnsupportedRay` with the names that are missing, and `ModuleNotFoundError` if Ray itself is.
    """
    _import_ray()
    names = (*PRIVATE_NAMES[EVERYTHING], *(() if what == EVERYTHING else PRIVATE_NAMES[what]))
    if missing := [name.replace(":", ".") for name in names if not is_found(name)]:
        raise unsupported_ray(what, missing)


_SKIPPED = "RAY_DEDUP_LOGS_SKIP_REGEX"
"""Variable in which Ray, at its import, reads which messages a driver does not print."""
_LOG_OF_RAYLET = r"\ARaylet is terminated\. Termination is unexpected"
"""Beginning of a message with the last 20 lines of a raylet's log. Another one says that the node is dead, and why."""


def _import_ray() -> None:
    is_given = _SKIPPED in os.environ
    os.environ.setdefault(_SKIPPED, _LOG_OF_RAYLET)
    try:
        import_module("ray")
    finally:
        if not is_given:
            del os.environ[_SKIPPED]


def is_found(name: str) -> bool:
    """Whether the installed Ray has `name`, a `module:path`."""
    module, _, path = name.partition(":")
    try:
        owner: object = import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("ray."):
            raise
        return False
    for part in path.split("."):
        if not hasattr(owner, part):
            return isinstance(owner, type) and part in attributes_of_instances(owner)
        owner = getattr(owner, part)
    return True


def attributes_of_instances(kind: type) -> set[str]:
    """Names that the methods of a class read or set.

    Also of its bases. All attributes of instances are among them.
    """
    codes = [getattr(member, "__code__", None) for base in kind.__mro__ for member in vars(base).values()]
    return {name for code in codes if code is not None for name in code.co_names}
