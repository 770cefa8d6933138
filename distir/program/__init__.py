"""
Programs: DistIR's view of an xDSL module. Open this file first: it lists the functions
that other folders import from here.

- `view`: a program with its entry function, arguments and results;
- `functions`: the entry function, the functions that it reaches, their calls, and the
  public functions that do not belong to the program;
- `entries`: programs with several entries, split into single entries and joined;
- `arguments`: roles, names and links of arguments and results;
- `naming`: names of ops and values in messages and labels;
- `locations`: the lines of source code that ops came from;
- `rewriting`: helpers that change a program;
- `source_forms`, `repacking`: arguments that hold a tensor of the source model padded
  or flattened, or hold several of its tensors;
- `weights`: the file with the values of parameters;
- `checks`: checks of a program that was read from a file;
- `doubts`, `unknown_sizes`: reasons why a program cannot be trained or distributed.
"""

from distir.program.arguments import (
    BATCH_ROLES,
    CACHE,
    GRADIENT,
    LOSS,
    argument_attributes,
    argument_names,
    argument_roles,
    check_links,
    forward_results,
    gradients_of_results,
    is_training_step,
    linked_arguments,
    parameters_of_gradients,
    parameters_of_states,
    result_attributes,
    result_names,
    result_roles,
    set_argument_attributes,
    set_result_attributes,
    updated_arguments,
)
from distir.program.functions import (
    ENTRY,
    MAX_CALL_DEPTH,
    MAX_EXECUTED,
    ancestors,
    callees_first,
    calls_of,
    check_body,
    check_calls,
    check_executed,
    entry_function,
    entry_points,
    functions,
    reachable_functions,
    return_op,
    unique_name,
    walk_functions,
)
from distir.program.naming import describe, free_name, is_name_hint, name_hint, scope_of
from distir.program.rewriting import (
    called,
    drop_unused_results,
    erase_dead,
    is_removable,
    made_with,
    replace_call,
    replace_program,
    set_results,
)
from distir.program.view import (
    Argument,
    Program,
    ProgramResult,
    arguments_of,
    batch_size,
    results_of,
)

__all__ = [
    "BATCH_ROLES",
    "CACHE",
    "ENTRY",
    "GRADIENT",
    "LOSS",
    "MAX_CALL_DEPTH",
    "MAX_EXECUTED",
    "Argument",
    "Program",
    "ProgramResult",
    "ancestors",
    "argument_attributes",
    "argument_names",
    "argument_roles",
    "arguments_of",
    "batch_size",
    "called",
    "callees_first",
    "calls_of",
    "check_body",
    "check_calls",
    "check_executed",
    "check_links",
    "describe",
    "drop_unused_results",
    "entry_function",
    "entry_points",
    "erase_dead",
    "forward_results",
    "free_name",
    "functions",
    "gradients_of_results",
    "is_name_hint",
    "is_removable",
    "is_training_step",
    "linked_arguments",
    "made_with",
    "name_hint",
    "parameters_of_gradients",
    "parameters_of_states",
    "reachable_functions",
    "replace_call",
    "replace_program",
    "result_attributes",
    "result_names",
    "result_roles",
    "results_of",
    "return_op",
    "scope_of",
    "set_argument_attributes",
    "set_result_attributes",
    "set_results",
    "unique_name",
    "updated_arguments",
    "walk_functions",
]
