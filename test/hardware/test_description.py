"""Clusters from a few numbers."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from support.command_line import failure, succeed

from distir.dialects.device import KindOp, LinkOp
from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.hardware.description import ClusterDescription, device_kinds
from distir.tools.arguments.types import number_of_bytes, rate

FOUR_NODES = ClusterDescription("c", "A100", 4, 8, nic=25e9)


def test_a_nic_per_device_is_not_shared():
    cluster = FOUR_NODES.build()
    cluster.verify()
    inner, network = cluster.links
    assert cluster.size == 32
    assert inner.spans.value.data == 8
    assert network.spans.value.data == 32
    assert network.bandwidth.value.data == 25e9
    assert network.block_bandwidth is None
    a100 = load_cluster("dgx-a100")
    assert cluster.kinds[0].peak_flops == a100.kinds[0].peak_flops
    assert inner.bandwidth == a100.links[0].bandwidth


@pytest.mark.parametrize(
    ("nics", "own", "shared"), [(2, 25e9, 50e9), (1, 25e9, 25e9), (16, 50e9, None)]
)
def test_other_numbers_of_nics(nics: int, own: float, shared: float | None):
    description = ClusterDescription("c", "A100", 4, 8, nic=25e9, nics_per_node=nics)
    network = description.build().links[-1]
    assert network.bandwidth.value.data == own
    block = network.block_bandwidth
    assert (None if block is None else block.value.data) == shared


def test_the_network_is_of_a_kind_that_profiles_know():
    assert FOUR_NODES.build().links[-1].kind_name == "infiniband"
    other = ClusterDescription("c", "A100", 4, 8, nic=25e9, nic_kind="roce").build()
    assert other.links[-1].kind_name == "roce"


def test_a_node_without_a_network_and_with_other_memory():
    description = ClusterDescription("c", "H100", 1, 4, link=1e9, memory=10)
    cluster = description.build()
    assert [link.bandwidth.value.data for link in cluster.links] == [1e9]
    assert cluster.kinds[0].memory.value.data == 10


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (ClusterDescription("c", "B7", 1, 8), "choose from A100, B200"),
        (ClusterDescription("c", "A100", 2, 8), "such as --nic 200Gb/s"),
        (ClusterDescription("c", "A100", 2, 8, 1e9, 12), "cannot be dealt out"),
        (ClusterDescription("c", "A100", 1 << 17, 8, 1e9), "cannot have 1048576"),
    ],
)
def test_descriptions_that_are_refused(description: ClusterDescription, message: str):
    with pytest.raises(DistIRError, match=message):
        description.build()


def test_every_built_in_kind_can_be_described():
    for kind in device_kinds():
        ClusterDescription("c", kind, 2, 4, nic=1e9).build().verify()


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [("200Gb/s", 25e9), ("25GB/s", 25e9), ("100 Gbps", 12.5e9), ("8b/s", 1.0)],
)
def test_rates(text: str, bytes_per_second: float):
    assert rate(text) == bytes_per_second


@pytest.mark.parametrize("text", ["200", "Gb/s", "-1Gb/s", "0GB/s", "1.2.3GB/s"])
def test_what_is_no_rate(text: str):
    with pytest.raises(ArgumentTypeError, match="such as 200Gb/s"):
        rate(text)


def test_numbers_of_bytes():
    assert number_of_bytes("80GB") == 80 * 10**9
    assert number_of_bytes("40GiB") == 40 << 30
    assert number_of_bytes("32e9") == 32 * 10**9
    with pytest.raises(ArgumentTypeError, match="number of bytes"):
        number_of_bytes("many")


def test_the_command_writes_a_file_that_other_commands_read(tmp_path: Path):
    file, model = tmp_path / "my-cluster.mlir", tmp_path / "model.mlir"
    options = [
        "--nodes",
        "4",
        "--devices-per-node",
        "8",
        "--kind",
        "A100",
        "--nic",
        "200Gb/s",
    ]
    assert "32 A100" in succeed("cluster", *options, "-o", file).output
    assert load_cluster(file).sym_name.data == "my_cluster"
    build = "mlp --layers 2 --d-model 64 --batch 64"
    succeed("build", *build.split(), "-o", model)
    assert (
        "32 devices" in succeed("simulate", model, "--cluster", file, "-d", "32").output
    )


def test_the_documentation_names_all_attributes_and_its_cluster_is_valid(
    tmp_path: Path,
):
    text = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    assert named == {*KindOp.get_irdl_definition().properties} - {
        "sym_name",
        "devices",
    } | {*LinkOp.get_irdl_definition().properties} - {"sym_name", "spans"}
    file = tmp_path / "my.mlir"
    file.write_text(re.findall(r"```mlir\n(device.cluster.*?)```", text, re.S)[0])
    assert load_cluster(file).size == 32


def test_a_name_that_no_cluster_can_have(tmp_path: Path):
    words = ("cluster", "--kind", "A100", "-o", tmp_path / "8.mlir")
    assert "--name" in failure(*words, "--name", "8")
