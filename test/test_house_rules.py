"""
Rules of the source that no tool checks: what errors are for, one name for one class,
modules that import each other one way, and facts of ops that are said where the ops are.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from support.sources import FOLDER, nodes, sources

from distir.universe import DISTIR_UNIVERSE

ANSWERS = {
    "planning/grid/evaluate.py": "what cannot be is a row of the result, with its reason",
    "planning/serving/search.py": "a shape that cannot be distributed is refused with the reason",
    "exports/runs/improvement.py": "a plan that a system has not is passed over",
    "exports/systems/system.py": "options that no longer say the plan are written anew",
    "launch/step_times.py": "what runs out of memory is a row of the result",
    "parallel/packages.py": "what is wrong on rank 0 is sent to all ranks, which raise it",
    "parallel/pretrained/weights.py": "what is wrong on a rank is sent to all, which raise it",
}
"""Modules that may catch an error for users without raising one, and why."""


@functools.cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """Each class of the package, with its path."""
    return [
        (path, node)
        for path, tree in sources().items()
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
    ]


def names_in(node: ast.AST | None) -> set[str]:
    """The names and last parts of attributes in an expression."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node else set()
    if node is not None:
        found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found


def errors_for_users() -> set[str]:
    """`DistIRError` and what is derived from it."""
    found = {"DistIRError"}
    while True:
        more = {
            node.name
            for _, node in classes()
            if any(names_in(base) & found for base in node.bases)
        }
        if more <= found:
            return found
        found |= more


def swallowed(tree: ast.AST, errors: set[str]) -> Iterator[int]:
    """The lines that catch one of the errors and raise none."""
    for node in nodes(tree):
        if isinstance(node, ast.ExceptHandler):
            raises = any(
                isinstance(inner, ast.Raise)
                for statement in node.body
                for inner in ast.walk(statement)
            )
            if names_in(node.type) & errors and not raises:
                yield node.lineno
        elif isinstance(node, ast.Call) and "suppress" in names_in(node.func):
            yield from (node.lineno for a in node.args if names_in(a) & errors)


def test_errors_for_users_answer_no_question() -> None:
    """A check returns; what raises is for the user, who must see it."""
    errors = errors_for_users()
    assert {"ShardingError", "InfeasibleError"} <= errors
    found = [
        f"{path}:{line}"
        for path, tree in sources().items()
        for line in swallowed(tree, errors)
        if not path.startswith(tuple(ANSWERS))
    ]
    assert not found, found


def test_no_module_has_a_public_name() -> None:
    """A module that is imported would take the place of the function of that name."""
    modules = {path.name.removesuffix(".py") for path in FOLDER.iterdir()}
    public = {
        key.value
        for node in nodes(sources()["__init__.py"])
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert "calibration" in modules and "export" in public
    assert not public & modules


def test_folders_can_be_taken_in_at_a_glance() -> None:
    """A folder has at most 20 files, but for rows of files that are all of one kind."""
    full = {
        folder.relative_to(FOLDER).as_posix(): count
        for folder in FOLDER.rglob("*/")
        if (count := sum(p.suffix == ".py" for p in folder.iterdir())) > 20
    }
    assert full.keys() == ROWS.keys()


ROWS = {
    "passes": "one file per pass, named like it",
    "dialects/train_ops": "one file per family of ops",
    "sharding/rules": "one file per family of ops",
}
"""Folders of more than 20 files, with the reason."""


def test_no_merge_left_its_marks() -> None:
    marks = re.compile(r"^\s*(<{7} |>{7} |={7}$)", re.M)
    folders = ("distir", "test", "bench", "docs", "examples", "website")
    found = [
        str(path)
        for folder in folders
        for ending in ("py", "md", "mlir")
        for path in (FOLDER.parent / folder).rglob(f"*.{ending}")
        if marks.search(path.read_text("utf-8"))
    ]
    assert not found


def test_files_can_be_read_in_one_go() -> None:
    """A file has at most 600 lines, but for dialects, which are one file each."""
    long = {
        path.relative_to(FOLDER).as_posix()
        for path in FOLDER.rglob("*.py")
        if len(path.read_text().splitlines()) > 600
    }
    assert long == LONG_FILES


LONG_FILES = {"dialects/device.py", "dialects/schedule.py", "dialects/torch.py"}
"""Dialects of more than 600 lines: who looks for an op finds it in the file of its dialect."""


def test_a_swallowed_error_is_seen() -> None:
    text = """
try: f()
except (ValueError, errors.DistIRError): pass
try: f()
except DistIRError as error: raise DistIRError(f"here: {error}") from error
with suppress(DistIRError): f()
with suppress(OSError): f()
"""
    assert list(swallowed(ast.parse(text), {"DistIRError"})) == [3, 6]


def test_a_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path, node in classes():
        places.setdefault(node.name, []).append(path)
    twice = {name: at for name, at in places.items() if len(at) > 1}
    assert not twice, twice


def imported(path: str, tree: ast.Module) -> Iterator[str]:
    """
    The modules of the package that a module imports, by their paths: wherever in it an import
    is, for typing alone too. What imports by itself to find files (`registries`) is not seen:
    it imports by a name that is made, with the first question that it is asked.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = f"{_package(path, node.level)}.{node.module or ''}".strip(".")
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (found for name in names if (found := _module(name)))


def _package(path: str, level: int) -> str:
    """The package that an import with so many dots begins at; "" for one without dots."""
    return ".".join(["distir", *path.split("/")[:-level]]) if level else ""


def _module(name: str) -> str:
    """The path of a module, or of that with a name in it; "" for those of others."""
    first, *parts = name.split(".")
    while first == "distir":
        start = "/".join(parts)
        for path in (f"{start}.py", f"{start}/__init__.py".lstrip("/")):
            if path in sources():
                return path
        if not parts:
            break
        parts.pop()
    return ""


def test_modules_import_each_other_one_way() -> None:
    imports = {
        path: {other for other in imported(path, tree) if other != path}
        for path, tree in sources().items()
    }
    assert sum(map(len, imports.values())) > len(imports)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(f"a cycle: {' <- '.join(error.args[1])}") from None


def test_folders_import_each_other_one_way() -> None:
    """The floors of the house: the folders, and the modules beside them."""
    imports: dict[str, set[str]] = {}
    for path, tree in sources().items():
        own = path.partition("/")[0]
        others = {other.partition("/")[0] for other in imported(path, tree)}
        imports.setdefault(own, set()).update(others - {own})
    assert {"dialects", "errors.py"} <= imports["program"]
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(f"a cycle: {' <- '.join(error.args[1])}") from None


def test_an_import_is_seen_wherever_it_is() -> None:
    text = """
import distir.errors
from distir.program import describe
from . import verification
from ..program import weights
if TYPE_CHECKING:
    from distir.sharding import layout
def f():
    from distir import __version__
"""
    assert sorted(imported("sharding/rule.py", ast.parse(text))) == [
        "__init__.py",
        "errors.py",
        "program/__init__.py",
        "program/weights.py",
        "sharding/layout.py",
        "sharding/verification.py",
    ]


WRITERS = frozenset(
    (
        *("write_text", "write_bytes", "touch", "tofile", "savefig"),
        *(
            "save_file",
            "save_model",
            "savez",
            "savez_compressed",
            "copyfile",
            "copytree",
        ),
        *("copy", "copy2", "move"),
    )
)
"""Functions that write to a file, whatever they are called on."""

HELPERS = ("replaced", "replaced_file", "replaced_files", "write_text")
"""What `distir.system.output_files` gives for that."""

IN_PLACE = {
    "runtime/storage/folder_lock.py": "a lock, which is a file that is held open",
    "planning/grid/journal.py": "a journal, to which lines are added",
    "runtime/loop/logs.py": "a log, to which lines are added",
    "launch/spawner.py": "logs of ranks, in a temporary folder",
    "solver/programs/standard_output.py": "standard output itself, and what it is sent to meanwhile",
}
"""Modules whose files grow or are held open, so that nothing takes their place, and why."""


def written_in_place(tree: ast.AST, inside: frozenset[str] = frozenset()) -> set[int]:
    """
    The lines that write to a file in another way than through a name that `replaced` and
    its like gave. `inside` are the names that are known already.
    """
    found = set[int]()
    known = inside
    if isinstance(tree, ast.With):
        for item in tree.items:
            call = item.context_expr
            is_helper = isinstance(call, ast.Call) and names_in(call.func) & set(
                HELPERS
            )
            # What is opened by such a name, as the next item may do, is as good.
            if is_helper or names_in(call) & known:
                known |= names_in(item.optional_vars)
        calls = [i.context_expr for i in tree.items]
        found |= {n for call in calls for n in written_in_place(call, known)}
        return found | {n for s in tree.body for n in written_in_place(s, known)}
    if isinstance(tree, ast.Call) and _writes(tree) and not names_in(tree) & known:
        found.add(tree.lineno)
    for child in ast.iter_child_nodes(tree):
        found |= written_in_place(child, known)
    return found


def _writes(call: ast.Call) -> bool:
    """Whether a call writes to a file, as far as its name and its mode tell."""
    function = call.func
    is_method = isinstance(function, ast.Attribute)
    name = function.attr if is_method else getattr(function, "id", "")
    if name == "write_text":
        return is_method
    if name in ("copy", "move"):
        return is_method and names_in(function.value) == {"shutil"}
    if name == "save" and is_method:
        return names_in(function.value) <= {"torch", "np", "numpy"}
    if "devnull" in names_in(call):
        return False  # it holds nothing that could be lost
    if name in ("open", "ZipFile"):
        texts = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant)]
        flags = names_in(call) & {"O_WRONLY", "O_RDWR", "O_CREAT"}
        modes = [t for t in texts if isinstance(t, str) and set(t) <= set("rwabtx+")]
        return bool(flags) or any(set(mode) & set("wax+") for mode in modes)
    return name in WRITERS


def test_files_are_replaced_when_all_is_written() -> None:
    """So that a disk that is full costs nobody what the file held before."""
    found = [
        f"{path}:{line}"
        for path, tree in sources().items()
        if path not in IN_PLACE and path != "system/output_files.py"
        for line in sorted(written_in_place(tree))
    ]
    assert not found, found
    assert all(written_in_place(sources()[path]) for path in IN_PLACE)


def test_a_file_that_is_written_in_place_is_seen() -> None:
    text = """
with replaced(path) as partial, ZipFile(partial, "w") as archive: pass
with replaced_files(path) as made:
    (made / "a").write_bytes(b"")
    (other / "a").write_bytes(b"")
write_text(path, "")
path.write_text("")
open(path)
path.open("rb")
open(path, mode="a")
path.open("r+")
os.open(path, os.O_WRONLY | os.O_CREAT)
torch.save(x, path)
saver.save(x, path)
np.savez(path)
layout.copy()
shutil.copy(a, b)
archive.open(f"{name}.npy", "w")
with replaced(path) as partial, ZipFile(partial, "w") as archive:
    archive.open(f"{name}.npy", "w")
"""
    assert sorted(written_in_place(ast.parse(text))) == [
        5,
        7,
        10,
        11,
        12,
        13,
        15,
        17,
        18,
    ]


@functools.cache
def op_names() -> frozenset[str]:
    """The names of all registered ops; those of ONNX without `onnx.`, too."""
    dialects = [make() for make in DISTIR_UNIVERSE.all_dialects.values()]
    names = {op.name for dialect in dialects for op in dialect.operations}
    return frozenset(names | {n.removeprefix("onnx.") for n in names})


def named_ops(tree: ast.AST) -> Iterator[tuple[int, frozenset[str]]]:
    """
    The literals of a syntax tree that hold texts: sets, lists, tuples, keys of dictionaries,
    alternatives of a match, and texts of words. Yields the line of each, and the names of ops
    in it, those in literals within it included.
    """
    for node in nodes(tree):
        match node:
            case ast.Set() | ast.List() | ast.Tuple():
                parts: list[ast.AST] = [*node.elts]
            case ast.Dict():
                parts = [key for key in node.keys if key is not None]
            case ast.MatchOr():
                parts = [*node.patterns]
            case ast.Constant(value=str(text)) if "\n\n" not in text:
                yield node.lineno, op_names().intersection(text.split())
                continue
            case _:
                continue
        inner = (n for part in parts for n in ast.walk(part))
        texts = {
            n.value
            for n in inner
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        yield node.lineno, op_names() & texts


def test_facts_of_ops_are_said_where_the_ops_are() -> None:
    """
    A list of more than three ops is a fact about ops: a table of `dialects/onnx_ops`, or an
    attribute of op classes (`dialects/op_facts.py`).
    """
    found = {
        f"{path}:{line}"
        for path, tree in sources().items()
        if not path.startswith("dialects/")
        for line, names in named_ops(tree)
        if len(names) > 3
    }
    assert not found, sorted(found)


def test_lists_of_ops_are_seen() -> None:
    text = """
FEW = {"onnx.Add", "onnx.Sub", "onnx.Mul"}
MANY = frozenset(("onnx.Add", "onnx.Sub", "onnx.Mul", "onnx.Div"))
NESTED = {*(f"onnx.{name}" for name in ("Add", "Sub")), "train.adam", "dist.reshard"}
TABLE = {"Add": 1, "Sub": 2, "Mul": 3, "collective.slice": 4}
WORDS = "Add Sub Mul Div".split()
PAIRS = [("Add", f), ("Sub", f), ("Mul", g), ("Div", g)]
match op.name:
    case "onnx.Add" | "onnx.Sub" | "onnx.Mul" | "onnx.Div":
        pass
OTHERS = ("add", "sub", "mul", "div", "Mine", "Yours")
"""
    lines = [line for line, names in named_ops(ast.parse(text)) if len(names) > 3]
    assert sorted(lines) == [3, 4, 5, 6, 7, 9]
