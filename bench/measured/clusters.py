"""
Clusters of the devices that the measurements name.

Dense peaks, bandwidths of memory and links per direction: NVIDIA's data sheets and DGX user guides.
"""

from __future__ import annotations

from dataclasses import dataclass

from distir.dialects.device import ClusterOp, KindOp, LinkOp


@dataclass(frozen=True)
class Gpu:
    """
    A GPU: its kind of device, its memory's bytes/s, FLOP/s in 16 and 32 bits, NVLink's
    bytes/s.
    """

    kind: str
    bandwidth: float
    peak: float
    peak_f32: float
    nvlink: float


_GPUS = {
    "v100_sxm2_16gb": Gpu("V100", 0.9e12, 125e12, 15.7e12, 150e9),
    "v100_sxm2_32gb": Gpu("V100", 0.9e12, 125e12, 15.7e12, 150e9),
    "v100_sxm3_32gb": Gpu("V100", 0.9e12, 125e12, 15.7e12, 150e9),
    "v100_pcie_32gb": Gpu("V100", 0.9e12, 112e12, 14e12, 15.75e9),
    "a100_sxm_40gb": Gpu("A100", 1.555e12, 312e12, 19.5e12, 300e9),
    "a100_sxm_80gb": Gpu("A100", 2.039e12, 312e12, 19.5e12, 300e9),
    "a100_pcie_80gb": Gpu("A100", 1.935e12, 312e12, 19.5e12, 31e9),
    "h100_sxm_80gb": Gpu("H100", 3.35e12, 989e12, 67e12, 450e9),
    "h100_pcie_80gb": Gpu("H100", 2.0e12, 756e12, 51e12, 63e9),
    "h200_sxm_141gb": Gpu("H200", 4.8e12, 989e12, 67e12, 450e9),
}
GPUS = {
    **_GPUS,
    "a100_40gb": _GPUS["a100_sxm_40gb"],
    "a100_80gb": _GPUS["a100_sxm_80gb"],
    "h100_80gb": _GPUS["h100_sxm_80gb"],
}


def cluster(
    gpu: str, devices: int, per_node: int = 8, network: float = 25e9
) -> ClusterOp:
    """Returns nodes of one kind of GPU; `network` is in bytes/s per GPU and direction."""
    kind = GPUS[gpu]
    per_node = min(per_node, devices)
    peaks = {"f16": kind.peak, "bf16": kind.peak, "default": kind.peak_f32}
    return ClusterOp(
        "cluster",
        [
            KindOp(
                kind.kind,
                range(devices),
                # All of it ran: memory is no reason to choose another program.
                memory=int(1e15),
                memory_bandwidth=kind.bandwidth,
                peak_flops=peaks,
                launch_latency=5e-6,
            )
        ],
        [
            LinkOp("nvlink", per_node, bandwidth=kind.nvlink, latency=5e-6),
            LinkOp("infiniband", devices, bandwidth=network, latency=1e-5),
        ],
    )
