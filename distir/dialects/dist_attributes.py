"""
The attributes of the `dist` dialect on arguments, results, ops, functions and modules
of a program. Each attribute is declared as an object that is the attribute's name and
knows the kind of its value: `STAGE in op.attributes`, `STAGE.of(op.attributes)`,
`op.attributes[STAGE] = STAGE.attr(2)`. `declared` lists the attributes that a Python
module declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import (
    ArrayAttr,
    BytesAttr,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Operation

from distir.errors import DistIRError

_STRINGS = (StringAttr, BytesAttr)
"""
The classes of text attributes. xDSL's own parser reads text with non-ASCII letters as
bytes.
"""


class DistAttribute(str):
    """
    The name of an attribute, with its meaning. `FORM` describes the allowed values in
    words, with NAME in place of the attribute's name. `CLASSES` are the attribute
    classes of allowed values. If the value is a list, `ELEMENTS` are the attribute
    classes of its elements.
    """

    FORM: ClassVar[str]
    CLASSES: ClassVar[tuple[type[Attribute], ...]]
    ELEMENTS: ClassVar[tuple[type[Attribute], ...]] = ()

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        """
        Returns the attribute called `name`. `meaning` is a sentence without its full
        stop.
        """
        found = super().__new__(cls, name)
        found.meaning = meaning
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.meaning)

    def holds(self, attr: Attribute) -> bool:
        """Whether `attr` is an allowed value of this attribute."""
        if not isinstance(attr, self.CLASSES):
            return False
        if not self.ELEMENTS or not isinstance(attr, ArrayAttr):
            return True
        found: Sequence[Attribute] = attr.data
        return all(isinstance(element, self.ELEMENTS) for element in found)


class Flag(DistAttribute):
    """An attribute without a value: only its presence counts."""

    FORM = "no value (NAME alone)"
    CLASSES = (UnitAttr,)


class Text(DistAttribute):
    """An attribute whose value is a text."""

    FORM = 'text in quotes (NAME = "...")'
    CLASSES = _STRINGS

    def of(self, attributes: Mapping[str, Attribute]) -> str | None:
        """
        Returns the attribute's text, or None if the attribute is absent. Raises
        DistIRError if the attribute's bytes are not valid text.
        """
        return text_attribute(attributes, self)

    def attr(self, text: str) -> StringAttr:
        """Returns `text` as a value of this attribute."""
        return StringAttr(text)


class OptionalText(Text):
    """
    An attribute that is a request. Its value is optional: a text that names the user or
    the pass that makes the request.
    """

    FORM = 'text in quotes (NAME = "...") or no value'
    CLASSES = (*_STRINGS, UnitAttr)


class Texts(DistAttribute):
    """An attribute whose value is a list of texts."""

    FORM = 'a list of texts (NAME = ["..."])'
    CLASSES = (ArrayAttr,)
    ELEMENTS = _STRINGS


class Integer(DistAttribute):
    """An attribute whose value is an integer."""

    FORM = "an integer (NAME = 1 : i64)"
    CLASSES = (IntegerAttr,)

    def of(self, attributes: Mapping[str, Attribute]) -> int | None:
        """Returns the attribute's integer, or None if the attribute is absent."""
        attr = attributes.get(self)
        return attr.value.data if isinstance(attr, IntegerAttr) else None

    def attr(self, number: int) -> IntegerAttr:
        """Returns `number` as a value of this attribute."""
        return IntegerAttr(number, i64)

    def taken_from(self, ops: Iterable[Operation]) -> dict[Operation, int]:
        """
        Removes this attribute from `ops` and returns the integer of each op. Ops
        without the attribute are left out.
        """
        found = {
            op: number for op in ops if (number := self.of(op.attributes)) is not None
        }
        for op in found:
            del op.attributes[self]
        return found


class Integers(DistAttribute):
    """An attribute whose value is a list of integers."""

    FORM = "integers (NAME = array<i64: ...>)"
    CLASSES = (DenseArrayBase,)


class Number(DistAttribute):
    """An attribute whose value is a floating-point number."""

    FORM = "a number (NAME = 1.0 : f64)"
    CLASSES = (FloatAttr,)


class Dictionary(DistAttribute):
    """An attribute whose value is a dictionary."""

    FORM = "a dictionary (NAME = {...})"
    CLASSES = (DictionaryAttr,)


class Dictionaries(DistAttribute):
    """An attribute whose value is a list of dictionaries."""

    FORM = "a list of dictionaries (NAME = [{...}])"
    CLASSES = (ArrayAttr,)
    ELEMENTS = (DictionaryAttr,)


def declared(*modules: ModuleType) -> dict[str, DistAttribute]:
    """
    Returns the attributes that Python modules declare, by name, in order of
    declaration.
    """
    return {
        str(value): value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, DistAttribute)
    }


def text_attribute(attributes: Mapping[str, Attribute], name: str) -> str | None:
    """
    Returns the text of the attribute called `name`, or None if the attribute is absent
    or not a text. Raises DistIRError if the attribute's bytes are not valid text.
    """
    attr = attributes.get(name)
    if type(attr) is StringAttr:
        return attr.data
    if type(attr) is BytesAttr:  # what plain xDSL reads letters outside of ASCII as
        try:
            return attr.data.decode()
        except UnicodeDecodeError as error:
            raise DistIRError(f"the attribute {name} = {attr} is no text") from error
    return None


# Of arguments and results.

ROLE = Text(
    "dist.role",
    'The role of an argument: `"parameter"`, `"state"`, `"constant"`, '
    '`"input"`, `"label"`, `"cache"` (what inference keeps of the tokens so far) or '
    '`"setting"`; of a result: `"loss"` or `"gradient"`',
)

ROLES = ("parameter", "state", "constant", "input", "label", "cache", "setting")
"""The possible roles of an argument."""

NAME = Text(
    "dist.name",
    "The name in the source model, under which loaders look an argument up",
)

UPDATES = Text(
    "dist.updates",
    "Of a result: the name of the argument that it replaces in the next step",
)

OF = Text(
    "dist.of",
    "Of a state: the name of the parameter that it belongs to; of a gradient: "
    "that of its parameter",
)

GRADIENT_OF = Text(
    "dist.gradient_of",
    "Of a label: the name of the result whose gradient it is. The caller computes it from "
    "that result, so that a rank's program waits for it between forward and backward",
)

MICRO_BATCHES = Integer(
    "dist.micro_batches",
    "Of a label that is the gradient of a result: the number of micro-batches of which the "
    "caller computes it one by one",
)

COUNTER = Flag(
    "dist.counter",
    "Of a state: it counts the steps done before",
)

LOSS_SCALE = Text(
    "dist.loss_scale",
    "Of a state: what it does for a loss that is scaled",
)

INITIAL = Text(
    "dist.initial",
    'Of a state: the value where no file holds it: `"ones"`, or `"copy"` of the '
    "parameter that it belongs to",
)

SETTING = Text(
    "dist.setting",
    "Of a setting: the hyper-parameter of the optimizer that it is in this step",
)

DEFAULT = Number(
    "dist.default",
    "Of a setting: the value where nobody gives another one",
)

FEEDS = Text(
    "dist.feeds",
    'Of an input of inference: what generation gives it: `"tokens"`, `"padding"` (the '
    'number of tokens to the left of each prompt that are none), `"positions"` (the '
    'number of tokens that the cache holds of each sequence) or `"pages"` (the pages of '
    "the cache that belong to each sequence, in order; -1 for none)",
)

LIMIT = Integer(
    "dist.limit",
    "Of an input of inference: the largest number of tokens of a sequence",
)

PAGES = Integers(
    "dist.pages",
    "Of the table of pages of a cache: the number of pools over which the sequences are "
    "divided, the number of pages of each pool, and the number of tokens of a page",
)

START = Integer(
    "dist.start",
    "Of the tokens of an encoder-decoder: the token with which its decoder begins. "
    "Prefill runs the encoder on the prompts and the decoder on this token",
)

FROZEN = Flag(
    "dist.frozen",
    "Of a parameter: it is not trained",
)

FIXED = Texts(
    "dist.fixed",
    "Axes for which a user asks for the requested layout of an argument "
    "(`dist.layout`); others are free to split the argument too",
)

FIXED_BY = Dictionary(
    "dist.fixed_by",
    "Who asked for the requested layout along each of these axes",
)

REPACKED = Dictionary(
    "dist.repacked",
    "The argument is several tensors of the source model in one, along `dim`, "
    "with these `names` and `sizes`",
)

FLATTENED = Dictionary(
    "dist.flattened",
    "The argument or result is a tensor of the source model of that `shape`, as "
    "`train.flatten` makes it, with that `length` and those `blocks`",
)

PADDED = Integers(
    "dist.padded",
    "The argument or result is a tensor of the source model that had this "
    "shape, with zeros behind it in some dimensions (before it is flattened)",
)

PADDED_RUNS = Integers(
    "dist.padded_runs",
    "Beside `dist.padded`, where zeros are not only behind a dimension but "
    "between its elements: the dimension and, in turn, how many elements and "
    "how many zeros come next",
)

# Of ops.

SCOPE = Text(
    "scope",
    "The dotted path of the module of the source model that an op came from",
)

DOUBT = Text(
    "dist.doubt",
    "Why a parameter cannot be trained, or no gradient can flow through an op: "
    "a word of `distir.program.doubts`, or text",
)

STOP_GRADIENT = Flag(
    "dist.stop_gradient",
    "Of an `onnx.Identity`: no gradient flows through it",
)

STAGE_START = OptionalText(
    "dist.stage_start",
    "Of an op of the entry function: the next stage of a pipeline begins with it",
)

STAGE = Integer(
    "dist.stage",
    "Of an op of the entry function: the number of its stage, as it was found. Of an "
    "argument in front of `pipeline`: the stage that it is to be on",
)

PLACE = Integer(
    "dist.place",
    "While layouts are searched: the index of the op in the sequential program",
)

RECOMPUTE = Text(
    "dist.recompute",
    "Of a call: the policy of `activation-checkpoint` for it alone; of another "
    "op of a function: the backward of the function recomputes it",
)

RECOMPUTED = Flag(
    "dist.recomputed",
    "Of an op of a backward that has floating-point operations: it computes again "
    "what the forward computed, which is work of the hardware and not of the model",
)

RECOMPUTE_BY = Text(
    "dist.recompute_by",
    "Who asked for the recomputation",
)

RESHARD_EARLY = Flag(
    "dist.reshard_early",
    "Asks `partition` to bring the operands of an op to their layouts where "
    "they are computed instead of where they are used, and `pipeline` to do so "
    "for each micro-batch before it adds these up",
)

REDUCE_LATE = Flag(
    "dist.reduce_late",
    "Partial sums that reach the op are reduced there, or behind it",
)

ENTRIES = Integer(
    "dist.entries",
    "Of an op that looks something up in a padded table: how many of its "
    "entries are not padding",
)

RAGGED = Flag(
    "dist.ragged",
    "Of a `dist.constrain` of rows of experts: where it is obeyed by an all-to- "
    "all, only rows that are taken travel (`collective.ragged_all_to_all`)",
)

NARROW_LOSS = Flag(
    "dist.narrow_loss",
    "Of a loss of 16-bit logits, or its gradient: the model computes it in their type, "
    "so that PyTorch makes no copies of the logits in 32 bits",
)

ASYNCHRONOUS = Flag(
    "dist.asynchronous",
    "Of a collective or a send: devices go on meanwhile",
)

BUCKET = Integer(
    "dist.bucket",
    "Of a collective: the number of the message that it travels in with others "
    "of that number (`CollectiveOp`)",
)

KEPT = Flag(
    "dist.kept",
    "The op must not be removed even if nothing uses its results",
)

# Of functions and modules.

ENTRY_POINT = Text(
    "dist.entry",
    'Of a function: the entry of the program that it is, of several: `"prefill"` or '
    '`"decode"` of inference. Entries share arguments of the same name',
)

COMPILED = Text(
    "dist.compiled",
    'Of a function: the backend that runs it as one piece (`"inductor"`, '
    '`"eager"`, `"cuda_graph"`)',
)

WEIGHTS = Text(
    "dist.weights",
    "Of a module: the file with the values of parameters",
)

EXPECTED = Dictionaries(
    "dist.expected",
    "Of a module: how often modules of the model are to communicate",
)

SEPARATE_COPIES = Flag(
    "dist.separate_copies",
    "Of a module: asks `partition` to bring a value to a layout for each use by "
    "itself, so that no copy is kept for later ones",
)

NOTES = Texts(
    "dist.notes",
    "Of a module: remarks of passes for the user",
)
