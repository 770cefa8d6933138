"""
Descriptions of clusters. The `.mlir` files of this folder describe the built-in
clusters; each cluster has the name of its file.

A file describes one node or a whole cluster, in the `device` dialect. If the two
outermost levels of links in a file span the same devices, the outermost level is the
network between nodes. Such a cluster can grow by whole nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.utils.exceptions import ParseError, VerifyException

from distir.dialects import get_all_dialects
from distir.dialects.device import MOST_DEVICES, ClusterOp, KindOp, LinkOp
from distir.errors import DistIRError, did_you_mean
from distir.text import ProgramParser

FOLDER = Path(__file__).parent


def cluster_names() -> list[str]:
    """Returns the names of the built-in clusters."""
    return sorted(path.stem for path in FOLDER.glob("*.mlir"))


def load_cluster(name_or_path: str | Path, devices: int | None = None) -> ClusterOp:
    """
    Returns the built-in cluster `name_or_path`, or the cluster in the `.mlir` file at
    that path, as an op without a parent. If `devices` is given and the cluster has
    fewer devices, the cluster grows to `devices`; otherwise the cluster is returned as
    the file describes it. Raises DistIRError if the file is missing or invalid, or if
    the cluster cannot grow to `devices`.
    """
    cluster = _read(
        built_in_or_file(str(name_or_path), "cluster", FOLDER, cluster_names(), ".mlir")
    )
    if devices is None:
        return cluster
    if not 1 <= devices <= MOST_DEVICES:
        raise DistIRError(
            f"a cluster cannot have {devices} devices; ask for 1 to {MOST_DEVICES}"
        )
    return cluster if devices <= cluster.size else grow(cluster, devices)


def built_in_or_file(
    name: str, what: str, folder: Path, names: Sequence[str], suffix: str
) -> Path:
    """
    Returns the path of a file that is built into DistIR or belongs to the user. If
    `name` is one of the built-in `names`, this is the file `name` in `folder`, with the
    suffix `suffix`. Otherwise it is the file at the path `name`. Raises DistIRError if
    there is no such file; `what` is the word for the contents of the file in the
    error's message.
    """
    if name in names:
        return folder / f"{name}{suffix}"
    path = Path(name)
    if path.is_file():
        if path.suffix not in (suffix, ""):
            raise DistIRError(
                f"{path} is given as a {what}, but a {what} is a file with the suffix "
                f"{suffix}, or one of {', '.join(names)}"
            )
        return path
    if path.is_dir():
        raise DistIRError(
            f"{path} is a folder; a {what} is a file with the suffix {suffix}, or one of "
            f"{', '.join(names)}"
        )
    if path.suffix == suffix or len(path.parts) > 1 or path.exists():
        raise DistIRError(f"there is no {what} file {name}")
    raise DistIRError(
        f"there is no built-in {what} {name!r} and no such file; "
        f"{did_you_mean(name, names)}the built-in {what}s are {', '.join(names) or 'none'}"
    )


def _read(path: Path) -> ClusterOp:
    # All dialects, because the file may be a program that holds a cluster.
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(Func)
    for name, dialect in get_all_dialects().items():
        context.register_dialect(name, dialect)
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise DistIRError(
                f"{path} is empty; `distir cluster` writes the description of a cluster"
            )
        module = ProgramParser(context, text, str(path)).parse_module()
        module.verify()
    except ParseError as error:
        location = error.span.get_location()
        raise DistIRError(f"{location}: {' '.join(error.msg.split())}") from error
    except VerifyException as error:
        # The message includes the file; its last non-empty line is the reason.
        lines = [line.strip(" ^-") for line in str(error).splitlines()]
        reason = next((line for line in reversed(lines) if line), "invalid")
        raise DistIRError(f"{path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise DistIRError(f"{path} is not a text file in UTF-8") from error
    except OSError as error:
        raise DistIRError(f"cannot read {path}: {error.strerror}") from error
    return _only_cluster(module, path)


def _only_cluster(module: ModuleOp, path: Path) -> ClusterOp:
    clusters = [op for op in module.body.block.ops if isinstance(op, ClusterOp)]
    if len(clusters) != 1:
        found = ", ".join(f"@{c.sym_name.data}" for c in clusters) or "none"
        raise DistIRError(
            f"{path} must hold exactly one device.cluster, but holds {found}; `distir "
            f"cluster` writes one from a few numbers"
        )
    clusters[0].detach()
    return clusters[0]


def grow(cluster: ClusterOp, devices: int) -> ClusterOp:
    """
    Returns a copy of `cluster` with `devices` devices, made by repeating whole nodes.
    The kinds of devices repeat from node to node, and the outermost link spans all
    devices. Raises DistIRError if `cluster` has no network between nodes, or if
    `devices` is not a multiple of the number of devices of a node.
    """
    size, links = cluster.size, cluster.links
    name = cluster.sym_name.data
    if len(links) < 2 or links[-1].spans.value.data < size:
        raise DistIRError(
            f"cluster @{name} has {size} devices and no network between nodes, so it "
            f"cannot grow to {devices}; use at most {size} devices, or describe the "
            f"network as a second device.link"
        )
    node = links[-2].spans.value.data
    if devices % node:
        raise DistIRError(
            f"cluster @{name} grows by whole nodes of {node} devices, but {devices} is "
            f"not a multiple of {node}"
        )
    of_kind: list[list[int]] = []
    for kind in cluster.kinds:
        ids = set(kind.devices.data)
        of_kind.append([i for i in range(devices) if i % size in ids])
    kinds = [
        _with_devices(k, ids) for k, ids in zip(cluster.kinds, of_kind, strict=True)
    ]
    inner = [link.clone() for link in links[:-1]]
    outer = links[-1]
    grown = LinkOp(
        outer.sym_name.data,
        devices,
        bandwidth=outer.bandwidth.value.data,
        latency=outer.latency.value.data,
        in_fabric_reduction=outer.in_fabric_reduction is not None
        and bool(outer.in_fabric_reduction.value.data),
        block_bandwidth=None
        if outer.block_bandwidth is None
        else outer.block_bandwidth.value.data,
        kind=None if outer.kind is None else outer.kind.data,
    )
    routes = [route.clone() for route in cluster.routes]
    return ClusterOp(name, kinds, [*inner, grown], routes)


def _with_devices(kind: KindOp, devices: list[int]) -> KindOp:
    copy = kind.clone()
    copy.devices = type(kind.devices)(tuple(devices))
    return copy
