"""Reads and writes the files of commands."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.irdl import OpDef, traits_def
from xdsl.passes import ModulePass
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import SendOp
from distir.dialects.dist_attributes import BUCKET, SCOPE, WEIGHTS
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.shapes import bare_type
from distir.errors import DistIRError, did_you_mean
from distir.passes import get_all_passes
from distir.program import (
    argument_names,
    check_calls,
    entry_function,
    entry_points,
    functions,
)
from distir.program.repacking import repacked_weights
from distir.program.weights import (
    check_replaceable,
    load_weights,
    path_beside,
    weights_file,
)
from distir.system.output_files import replaced, replaced_file
from distir.text import ProgramParser, ProgramPrinter, new_context

Arrays = Mapping[str, npt.NDArray[Any]]


def read_program(path: Path) -> ModuleOp:
    """
    Reads and verifies a program. Its functions must be straight-line code. Raises
    ParseError, VerifyException or DistIRError if the file is not such a program.
    """
    content = _text(path)
    parser = ProgramParser(new_context(), content, str(path))
    module = parser.parse_module()
    verify(module)
    if functions(module):
        check_calls(module)
    return module


_OTHER_FILES = {
    ".onnx": "is an ONNX model, not a program: import it first, with `distir import {path} -o "
    "{stem}.mlir`",
    ".safetensors": "holds weights, not a program; give the .mlir file that names it, or import "
    "the model first (`distir import`)",
    ".py": "is Python code, not a program: import the model that a function in it returns, with "
    "`distir import {path}:FUNCTION -o {stem}.mlir`",
    ".json": "is not a program; a plan goes to `distir distribute --plan`, a profile to "
    "--profile, and the configuration of a model to `distir import --transformers`",
    ".npz": "holds arrays, not a program; they are given with --inputs",
}
"""For each suffix of a file that is not a program, the error message with advice."""


def _text(path: Path) -> str:
    """
    Returns the text of the program file `path`. Raises DistIRError if the file does not
    exist or is not a program.
    """
    if str(path) == "-":
        raise DistIRError(
            "a program is read from a file, and - is none; `distir-opt` reads a program that "
            "is piped into it"
        )
    if path.is_dir():
        raise DistIRError(f"{path} is a folder; a program is an .mlir file")
    if not path.exists():
        beside = [str(other) for other in path.parent.glob("*.mlir")]
        meant = did_you_mean(str(path), beside).rstrip()
        raise DistIRError(
            f"{path}: No such file or directory{f'; {meant}' if meant else ''}"
        )
    return text_of(path.read_bytes(), path)


def text_of(content: bytes, path: Path) -> str:
    """
    Returns the text of a program from `content`, the bytes of its file. `path` names
    the file in messages. Raises DistIRError if the bytes cannot be a program.
    """
    refuse_other_files(path)
    if not content.strip():
        raise DistIRError(
            f"{path} is empty; write the program again, with `distir import` or `distir build`"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DistIRError(
            f"{path} is not UTF-8 text; a program is an .mlir file, which `distir import` and "
            "`distir build` write"
        ) from error


def refuse_other_files(path: Path) -> None:
    """
    Raises DistIRError if the suffix of `path` shows that the file is not a program. The
    message names the kind of the file and a command that can read it.
    """
    if path.suffix in _OTHER_FILES:
        raise DistIRError(
            f"{path} {_OTHER_FILES[path.suffix].format(path=path, stem=path.stem)}"
        )


def write_program(
    module: ModuleOp,
    path: Path,
    source: Path | None = None,
    *,
    locations: bool = False,
) -> Path | None:
    """
    Writes a module as text to `path`, with aliases for repeated types. The old file
    stays until the new one is complete. If the module was read from `source`, its
    weights are made available beside `path`.

    With `locations`, or if the file `source` has them, the text names the line of the
    source that each op came from (`loc(...)`). Returns the path of the weights if they
    were linked or copied, else None.
    """
    with (
        nullcontext()
        if source is None
        else weights_beside(module, source, path) as beside
    ):
        with replaced_file(path) as stream:
            printer = ProgramPrinter(stream)
            shown = locations or source is not None
            printer.print_program(module, with_locations=shown)
        return beside


def named_pass(name: str) -> ModulePass:
    """Returns the DistIR pass `name` with its default options."""
    return get_all_passes()[name]()()


def apply_passes(module: ModuleOp, *passes: ModulePass) -> None:
    """Runs passes in order and verifies the module after each pass."""
    context = new_context()
    for module_pass in passes:
        module_pass.apply(context, module)
        verify(module)


def verify(module: ModuleOp) -> None:
    """
    Verifies a module. Among equal ops it verifies only one, to save time. Raises
    VerifyException if an op is invalid.
    """
    _Verifier().verify(module)


class _Verifier:
    """
    Verifies ops, but only one of several equal ops. Calls, sends, collectives, ops of
    training steps and ONNX ops count as equal if their attributes and types are equal,
    because their verification depends on nothing else. ONNX ops are compared without
    layouts, but with their constant operands. Collectives of a bucket are also compared
    with the ops before them.
    """

    def __init__(self) -> None:
        self._same: set[object] = set()
        self._alike: set[object] = set()
        # The numbers of types with and without layouts, and of attributes, by their ids, as
        # hashing is slow: types and attributes live as long as their module.
        self._types: dict[int, tuple[int, int]] = {}
        self._attributes: dict[int, int] = {}
        self._numbers: dict[Attribute, int] = {}

    def verify(self, op: Operation) -> None:
        """
        Verifies an op and the ops inside it. Raises VerifyException if an op is
        invalid.
        """
        for region in op.regions:
            for block in region.blocks:
                if block.first_op is None:
                    block.verify()
                for inner in block.ops:
                    self.verify(inner)
        if not op.regions and not op.successors and _is_comparable(op):
            if not _fits_bucket(op):
                op.verify(verify_nested_ops=False)
                return
            same = _identity(op)
            if same in self._same:
                return
            self._same.add(same)
            key = (type(op), op.next_op is None, self._content(op))
            if key in self._alike:
                return
            self._alike.add(key)
        if type(op) is not FuncOp or not _is_valid_function(op):
            op.verify(verify_nested_ops=False)

    def _content(self, op: Operation) -> object:
        """Returns a key that two equal ops have in common."""
        operands, types = op.operands, self._types
        used = [value.type for value in (*operands, *op.results)]
        for type_ in used:
            if id(type_) not in types:
                types[id(type_)] = self._number(type_), self._number(bare_type(type_))
        properties = op.properties.items()
        if isinstance(op, OnnxOp):
            return (
                len(operands),
                *[types[id(type_)][1] for type_ in used],
                *[_constant(value) for value in operands],
                *[(name, id(own)) for name, own in properties],
            )
        what: tuple[object, ...]
        if isinstance(op, CallOp):
            callee = op.properties.get("callee")
            is_name = isinstance(callee, SymbolRefAttr)
            others = [(n, id(own)) for n, own in properties if n != "callee"]
            what = (callee.string_value() if is_name else callee, *others)
        else:
            attributes = (*properties, *op.attributes.items())
            what = tuple(
                [
                    (name, self._attribute(own))
                    for name, own in attributes
                    if name not in (SCOPE, BUCKET)
                ]
            )
        return (what, *map(type, operands), *[types[id(type_)][0] for type_ in used])

    def _attribute(self, attribute: Attribute) -> int:
        found = self._attributes.get(id(attribute))
        if found is None:
            found = self._attributes[id(attribute)] = self._number(attribute)
        return found

    def _number(self, attribute: Attribute) -> int:
        """Returns an id for `attribute`. Equal attributes have the same id."""
        return self._numbers.setdefault(attribute, len(self._numbers))


def _is_comparable(op: Operation) -> bool:
    """Whether `op` is of a kind of which only one of several equal ops is verified."""
    if _is_comparable_kind(type(op)):
        return True
    # Other attributes of a collective tie it to ops around it.
    return op.name.startswith("collective.") and op.attributes.keys() <= {SCOPE, BUCKET}


@cache
def _is_comparable_kind(kind: type[Operation]) -> bool:
    return issubclass(kind, OnnxOp | CallOp | SendOp) or kind.name.startswith("train.")


def _identity(op: Operation) -> object:
    """
    Returns a key that two equal ops have in common if they share the objects that are
    their types and attributes, which is quick to compute.
    """
    operands = list(op.operands)
    return (
        type(op),
        op.next_op is None,
        len(operands),
        *[id(value.type) for value in operands],
        *[id(value.type) for value in op.results],
        *[(name, id(own)) for name, own in op.properties.items()],
        *[
            (name, id(own))
            for name, own in op.attributes.items()
            if name not in (SCOPE, BUCKET)
        ],
        *map(_constant if isinstance(op, OnnxOp) else type, operands),
    )


def _is_valid_function(function: FuncOp) -> bool:
    """
    Whether `function` is straight-line code in a module and is valid. Returns False if
    only xDSL can tell, which takes much longer.
    """
    blocks = list(function.body.blocks)
    if len(blocks) != 1 or not isinstance(function.parent_op(), ModuleOp):
        return False
    known = set(map(id, blocks[0].args))
    for op in blocks[0].ops:
        if op.regions or not known.issuperset(map(id, op.operands)):
            return False
        known.update(map(id, op.results))
    try:
        _function_without_isolation().verify(function)
    except VerifyException:
        return False
    return function.function_type.inputs.data == blocks[0].arg_types


@cache
def _function_without_isolation() -> OpDef:
    """
    Returns xDSL's definition of functions without the trait that they use no value from
    outside.
    """
    rest = [t for t in FuncOp.traits if not isinstance(t, IsolatedFromAbove)]
    return replace(FuncOp.get_irdl_definition(), traits=traits_def(*rest))


def _fits_bucket(op: Operation) -> bool:
    """
    Whether a collective can travel in one message with the previous one of its bucket.
    Returns True for ops that are in no bucket.
    """
    if BUCKET in op.attributes and isinstance(op, CollectiveOp):
        try:
            op.check_bucket()
        except VerifyException:
            return False
    return True


def _constant(value: SSAValue) -> object:
    """
    Returns a key for an operand of an ONNX op. For a constant, the key is the id of the
    constant's value; for any other operand, it is the class of `value`.
    """
    if type(value) is not OpResult or value.op.name != "onnx.Constant":
        return type(value)
    return id(value.op.properties.get("value"))


def program_weights(module: ModuleOp, path: Path) -> Arrays:
    """
    Returns the weights of the module that was read from `path`, by name. Returns an
    empty mapping if the module names no weights. Raises DistIRError if a weight belongs
    to no argument, because the intended argument would get random values.
    """
    file = weights_file(module, path)
    if file is None:
        return {}
    weights: Arrays = load_weights(file)
    names: set[str] = set()
    for function in entry_points(module).values() or [entry_function(module)]:
        weights = repacked_weights(function, weights)
        names.update(argument_names(function))
    unknown = sorted(set(weights) - names)
    if unknown:
        raise DistIRError(
            f"{file} holds {unknown[0]!r}, but {path} has no argument of that name; give "
            f"the argument this dist.name, or import the model again"
        )
    return weights


@contextmanager
def weights_beside(
    module: ModuleOp, source: Path, target: Path
) -> Generator[Path | None]:
    """
    Returns a context manager that makes a module's weights available beside `target`.
    `source` is the file from which the module was read, and `target` is the file to
    which the block writes it. A module names its weights by a file in its own folder.
    The weights are hard-linked if the file system allows it, else copied. If the block
    raises an error, the weights that were beside `target` before stay. The context
    manager yields the path of the new weights, or None if none are needed.
    """
    file = weights_file(module, source)
    if file is None or target.parent.resolve() == source.parent.resolve():
        yield None
        return
    beside = path_beside(target)
    module.attributes[WEIGHTS] = WEIGHTS.attr(beside.name)
    if beside.exists() and beside.samefile(file):
        yield None
        return
    check_replaceable(beside, target)
    if beside.is_symlink():  # which has no weights itself
        beside.unlink()
    with replaced(beside) as partial:
        try:
            os.link(file, partial)
        except OSError:
            shutil.copyfile(file, partial)
        yield beside


def read_arrays(path: Path | None) -> Arrays:
    """
    Returns the arrays in an .npz file by name. Returns an empty mapping if `path` is
    None. Raises DistIRError if the file cannot be read.
    """
    if path is None:
        return {}
    with path.open("rb") as stream:
        try:
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, Mapping):
                return {str(name): archive[name] for name in archive}
        # NumPy, zipfile and the decompressors behind them raise whatever they meet in a
        # damaged file: NotImplementedError, RuntimeError, zlib.error, TokenError, ...
        except Exception as error:
            raise DistIRError(
                f"{path} is not a readable .npz file, which numpy.savez writes: "
                f"{_reason(error)}"
            ) from error
    raise DistIRError(
        f"{path} holds a single array; give an .npz file, which has one for each name "
        f"(numpy.savez)"
    )


def _reason(error: Exception) -> str:
    """
    Returns the reason why NumPy could not read a file, without mention of pickles.
    """
    text = str(error) or "it ends too early"
    return "it is no archive of arrays" if "pickle" in text else text


def write_arrays(path: Path, arrays: Arrays) -> None:
    """
    Writes an .npz file. Element types that NumPy's format lacks (bfloat16 and 8-bit
    floats) are stored as float32.
    """
    # Not np.savez, whose keyword arguments cannot be called "file".
    with replaced(path) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, array in arrays.items():
            if array.dtype.kind == "V":
                array = array.astype(np.float32)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)
