"""What all ops of the `train` dialect have in common."""

from xdsl.irdl import IRDLOperation, ParsePropInAttrDict, traits_def
from xdsl.traits import Pure


class TrainOp(IRDLOperation):
    """
    Base of the ops of a training step: without side effects, printed as operands,
    attributes and the types of operands and results, unless an op says otherwise.
    """

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"
