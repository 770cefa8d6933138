"""Built-in and users' clusters."""

from pathlib import Path

import pytest

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.hardware import cluster_names, load_cluster

ONE_KIND = """
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64,
    peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
"""
LINK = "  device.link @{} spans 2 {{bandwidth = 1.0 : f64, latency = 0.0 : f64}}\n"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_built_in_clusters():
    assert set(cluster_names()) >= {"cpu", "dgx-a100", "dgx-h100", "dgx-h200", "dgx2"}
    for name in cluster_names():
        load_cluster(name).verify()


@pytest.mark.parametrize(
    ("name", "devices", "memory", "f16", "node_bandwidth", "network_bandwidth"),
    [
        ("dgx2", 16, 32e9, 125e12, 150e9, 6.25e9),
        ("v100-roce", 8, 32e9, 125e12, 150e9, 12.5e9 / 8),
        ("v100-pcie-roce", 1, 32e9, 130e12, 15.75e9, 12.5e9),
        ("dgx-a100", 8, 80e9, 312e12, 300e9, 25e9),
        ("dgx-h100", 8, 80e9, 989e12, 450e9, 50e9),
        ("dgx-h200", 8, 141e9, 989e12, 450e9, 50e9),
        ("dgx-b200", 8, 180e9, 2250e12, 900e9, 50e9),
        ("gb200-nvl72", 72, 186e9, 2500e12, 900e9, 50e9),
        ("h800", 8, 80e9, 989e12, 200e9, 50e9),
        ("mi300x", 8, 192e9, 1307.4e12, 448e9, 50e9),
    ],
)
def test_figures(name, devices, memory, f16, node_bandwidth, network_bandwidth):
    cluster = load_cluster(name)
    assert cluster.size == devices
    (kind,) = cluster.kinds
    assert kind.memory.value.data == memory
    assert kind.peak("f16") == f16
    bandwidths = [link.bandwidth.value.data for link in cluster.links]
    assert bandwidths == [node_bandwidth, network_bandwidth]


def test_growing_by_whole_nodes():
    cluster = load_cluster("dgx2", 48)
    cluster.verify()
    assert cluster.size == 48
    assert [link.spans.value.data for link in cluster.links] == [16, 48]
    assert load_cluster("dgx2", 3).size == 16
    with pytest.raises(DistIRError, match=r"whole nodes of 16 devices.* 40 is not"):
        load_cluster("dgx2", 40)
    with pytest.raises(
        DistIRError, match=r"no network between nodes.*cannot grow to 17"
    ):
        load_cluster("cpu", 17)
    with pytest.raises(DistIRError, match="cannot have 0 devices"):
        load_cluster("dgx2", 0)


def test_growing_repeats_the_kinds(tmp_path: Path):
    text = """device.cluster @mixed {
      device.kind @a on [0] {memory = 1 : i64, memory_bandwidth = 1.0 : f64,
        peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
      device.kind @b on [1] {memory = 2 : i64, memory_bandwidth = 1.0 : f64,
        peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
    """
    text += LINK.format("inner") + LINK.format("outer") + "}"
    cluster = load_cluster(write(tmp_path / "c.mlir", text), 6)
    cluster.verify()
    assert [kind.devices.data for kind in cluster.kinds] == [(0, 2, 4), (1, 3, 5)]


def test_a_users_file(tmp_path: Path):
    path = write(
        tmp_path / "c.mlir", f"device.cluster @mine {{{ONE_KIND}{LINK.format('l')}}}"
    )
    cluster = load_cluster(path, 2)
    assert isinstance(cluster, ClusterOp) and cluster.sym_name.data == "mine"
    assert cluster.parent is None


def test_a_program_that_holds_a_cluster(tmp_path: Path):
    program = Path(__file__).parents[1] / "filecheck" / "simulate" / "pipeline.mlir"
    assert load_cluster(program).sym_name.data == "pair"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device.cluster @c {", r"c\.mlir:1:\d+: "),
        ("\nnot mlir", r"c\.mlir:2:\d+: "),
        ("builtin.module {}", "exactly one device.cluster, but holds none"),
        (
            "".join(
                f"device.cluster @c{i} {{{ONE_KIND}{LINK.format('l')}}}" for i in (1, 2)
            ),
            "holds @c1, @c2",
        ),
        (f"device.cluster @c {{{ONE_KIND}}}", "no link connects all of its 2 devices"),
        ("", r"c\.mlir is empty; `distir cluster` writes"),
        ("\x00\x01", r"c\.mlir:1:\d+: "),
    ],
)
def test_bad_files_are_one_paragraph(tmp_path: Path, text: str, message: str):
    with pytest.raises(DistIRError, match=message) as error:
        load_cluster(write(tmp_path / "c.mlir", text))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_text(tmp_path: Path):
    path = tmp_path / "c.mlir"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DistIRError, match="not a text file"):
        load_cluster(path)


def test_unknown_names_list_the_known_ones(tmp_path: Path):
    with pytest.raises(DistIRError, match=r"no built-in cluster 'dgx3'.*cpu, dgx-a100"):
        load_cluster("dgx3")
    with pytest.raises(DistIRError, match="no cluster file"):
        load_cluster(tmp_path / "missing.mlir")
