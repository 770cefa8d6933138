"""What plain `xdsl-opt` and the tools of DistIR find through the entry point."""

from xdsl.ir import Dialect
from xdsl.universe import Universe


def toy() -> Dialect:
    from toy.dialect import Toy

    return Toy


TOY_UNIVERSE = Universe(all_dialects={"toy": toy})
