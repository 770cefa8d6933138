"""Collectives on the tensors of one rank, whose shapes are local."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import opt_prop_def, prop_def, traits_def
from xdsl.traits import MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops.base import (
    I64,
    CollectiveOp,
    OfOneRank,
    require_waits,
)
from distir.dialects.dist import REDUCTIONS, layout_of


class InLocalForm(CollectiveOp):
    """
    Base of the collectives on local tensors: of one rank's program, and of one program
    for all ranks. Properties of the op hold the facts that layouts give in a
    distributed program.

    An op stays even if its result is unused, because the other ranks of its group run
    it too. Only `collective.wait` or a return may use the result of an asynchronous op.
    """

    # Other ranks of the group run it too, so no generic pass may remove it.
    traits = traits_def(OfOneRank(), MemoryWriteEffect())

    def __init__(
        self,
        operands: Sequence[SSAValue],
        axes: Sequence[str],
        result_type: Attribute,
        *,
        group: Attribute | None = None,
        reduction: str | None = None,
        **numbers: int | None,
    ):
        """
        Makes a collective over `axes`. An argument that is None leaves its property
        out. `numbers` holds the integer properties: `dim`, `run`, `split_dim`,
        `split_run`, `blocks`, `split_blocks`, `shift` and `root`.
        """
        properties: dict[str, Attribute] = {
            "axes": ArrayAttr([StringAttr(a) for a in axes])
        }
        if group is not None:
            properties["group"] = group
        if reduction is not None:
            properties["reduction"] = StringAttr(reduction)
        for name, number in numbers.items():
            if number is not None:
                properties[name] = IntegerAttr(number, i64)
        Operation.__init__(
            self, operands=operands, result_types=[result_type], properties=properties
        )

    @property
    def group_size(self) -> int | None:
        """
        The number of ranks that take part, or None if this number is known only when
        the program runs.
        """
        raise NotImplementedError

    def number(self, name: str) -> int | None:
        """
        Returns the integer property `name`, or None if the op does not have the
        property.
        """
        found = self.properties.get(name)
        return found.value.data if isinstance(found, IntegerAttr) else None

    @property
    def reduction_name(self) -> str | None:
        found = self.properties.get("reduction")
        return found.data if isinstance(found, StringAttr) else None

    def sizes(self, shape: Sequence[int], ranks: int) -> Sequence[int]:
        """
        Returns the local shape of the result, given the local shape of the operand and
        the number of ranks that take part.
        """
        return shape

    def verify_(self) -> None:
        super().verify_()
        if layout_of(self.source) is not None or layout_of(self.result) is not None:
            raise VerifyException(
                f"{self.name} belongs to one rank's program, but its types have layouts; "
                f"in a distributed program, write collective.{self.kind} without a group"
            )
        if self.reduction_name is not None and self.reduction_name not in REDUCTIONS:
            raise VerifyException(
                f"{self.name}: `reduction` is {self.reduction_name!r}, expected one of "
                f"{', '.join(REDUCTIONS)}"
            )
        source, result = self.source.type, self.result.type
        assert isinstance(source, TensorType) and isinstance(result, TensorType)
        shape, ranks = list(source.get_shape()), self.group_size
        for name in ("dim", "split_dim"):
            number = self.number(name)
            if number is not None and not 0 <= number < len(shape):
                raise VerifyException(
                    f"{self.name}: `{name}` is {number}, but the operand has "
                    f"{len(shape)} dimensions"
                )
        if ranks is not None and min(shape, default=0) >= 0:
            expected = list(self.sizes(shape, ranks))
            if list(result.get_shape()) != expected:
                raise VerifyException(
                    f"{self.name}: the result has shape {list(result.get_shape())}, "
                    f"expected {expected} from {shape} in a group of {ranks}"
                )
        if self.is_asynchronous:
            require_waits(self.result)

    def gathered(self, shape: Sequence[int], ranks: int) -> list[int]:
        """
        Returns `shape` with the size of dimension `dim` multiplied by the number of
        ranks.
        """
        dim = self.number("dim")
        return [n * ranks if i == dim else n for i, n in enumerate(shape)]

    def split(self, shape: Sequence[int], ranks: int, name: str = "dim") -> list[int]:
        """
        Returns `shape` with the size of the dimension in the property `name` divided by
        the number of ranks.
        """
        dim = self.number(name)
        if dim is not None and shape[dim] % ranks:
            raise VerifyException(
                f"{self.name}: dimension {dim} of size {shape[dim]} cannot be split "
                f"among {ranks} ranks"
            )
        return [n // ranks if i == dim else n for i, n in enumerate(shape)]


class Reducing(InLocalForm):
    """Base of collectives with the property `reduction`: `sum`, `max` or `min`."""

    reduction = prop_def(StringAttr)


class AlongDimension(InLocalForm):
    """
    Base of collectives of parts along one dimension, `dim`. With `run`, the ranks get
    the elements of this dimension in turn, `run` consecutive elements at a time.
    Without `run`, each rank gets one contiguous part.
    """

    dim = prop_def(I64)
    run = opt_prop_def(I64)


class Gathering(AlongDimension):
    """Base of collectives that gather the dimension `dim`."""

    def sizes(self, shape: Sequence[int], ranks: int) -> Sequence[int]:
        return self.gathered(shape, ranks)


class Splitting(AlongDimension):
    """Base of collectives that split the dimension `dim`."""

    def sizes(self, shape: Sequence[int], ranks: int) -> Sequence[int]:
        return self.split(shape, ranks)


class Exchanging(Gathering):
    """
    Base of collectives that gather the dimension `dim` and split the dimension
    `split_dim`. `run` and `split_run` are the numbers of consecutive elements that a
    rank gets at a time.

    If `blocks` is present, it is the number of equal blocks of which the dimension
    `dim` consists. Each block holds the parts of equally many neighbouring ranks, `run`
    elements at a time. `split_blocks` means the same for `split_dim`.
    """

    blocks = opt_prop_def(I64)
    split_dim = prop_def(I64)
    split_run = opt_prop_def(I64)
    split_blocks = opt_prop_def(I64)

    def sizes(self, shape: Sequence[int], ranks: int) -> Sequence[int]:
        return self.split(self.gathered(shape, ranks), ranks, "split_dim")
