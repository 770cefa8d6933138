"""The passes of DistIR: one file for each pass, with the name of the pass."""

from collections.abc import Callable
from importlib import import_module

from xdsl.passes import ModulePass

_PASSES: dict[str, str] = {
    # pass name: class, in the module `distir.passes.<name with underscores>`
    "fold-shapes": "FoldShapesPass",
    "infer-types": "InferTypesPass",
    "inline-calls": "InlineCallsPass",
    "outline-repeats": "OutlineRepeatsPass",
    "add-mesh": "AddMeshPass",
    "add-step-settings": "AddStepSettingsPass",
    "activation-checkpoint": "ActivationCheckpointPass",
    "apply-schedule": "ApplySchedulePass",
    "auto-parallel": "AutoParallelPass",
    "autocast": "AutocastPass",
    "batch-statistics": "BatchStatisticsPass",
    "bucket-collectives": "BucketCollectivesPass",
    "canonicalize-imported": "CanonicalizeImportedPass",
    "collective-to-mpi": "CollectiveToMpiPass",
    "collective-to-shard": "CollectiveToShardPass",
    "context-parallel": "ContextParallelPass",
    "convert-floats": "ConvertFloatsPass",
    "data-parallel": "DataParallelPass",
    "decompose-collectives": "DecomposeCollectivesPass",
    "differentiate": "DifferentiatePass",
    "distribute": "DistributePass",
    "expand-float8": "ExpandFloat8Pass",
    "expert-parallel": "ExpertParallelPass",
    "float8": "Float8Pass",
    "fuse-operators": "FuseOperatorsPass",
    "gather-once": "GatherOncePass",
    "lower-reshard": "LowerReshardPass",
    "offload-states": "OffloadStatesPass",
    "overlap-communication": "OverlapCommunicationPass",
    "partition": "PartitionPass",
    "pipeline": "PipelinePass",
    "propagate-sharding": "PropagateShardingPass",
    "quantize-caches": "QuantizeCachesPass",
    "quantize-weights": "QuantizeWeightsPass",
    "raise-patterns": "RaisePatternsPass",
    "request-sharding": "RequestShardingPass",
    "ring-attention": "RingAttentionPass",
    "search-grid": "SearchGridPass",
    "search-sharding": "SearchShardingPass",
    "search-stages": "SearchStagesPass",
    "sequence-parallel": "SequenceParallelPass",
    "store-dropout-masks": "StoreDropoutMasksPass",
    "tensor-parallel": "TensorParallelPass",
    "train-dropout": "TrainDropoutPass",
    "verify-distribution": "VerifyDistributionPass",
    "zero": "ZeroPass",
    "simulate": "SimulatePass",
    "project": "ProjectPass",
    "await-gradients": "AwaitGradientsPass",
    "outline-text": "OutlineTextPass",
    "outline-between-calls": "OutlineBetweenCallsPass",
    "reuse-operands": "ReuseOperandsPass",
    "compute-in-messages": "ComputeInMessagesPass",
    "pack-saved-tensors": "PackSavedTensorsPass",
    "release-saved-tensors": "ReleaseSavedTensorsPass",
    "choose-entry": "ChooseEntryPass",
    "choose-graphs": "ChooseGraphsPass",
    "compile-leaves": "CompileLeavesPass",
}


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """
    Returns a function for each pass, by the pass's name. The function imports the pass
    and returns its class.
    """

    def loader(name: str, class_name: str) -> Callable[[], type[ModulePass]]:
        def load() -> type[ModulePass]:
            module = import_module(f"distir.passes.{name.replace('-', '_')}")
            return getattr(module, class_name)

        return load

    return {name: loader(name, cls) for name, cls in _PASSES.items()}
