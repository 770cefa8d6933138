"""Configuration of the lit tests under test/filecheck."""

import os
import pathlib
import subprocess
import sys
import types

import lit.formats
import lit.TestRunner

config.name = "DistIR"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir", ".py.test"]  # noqa: F821
config.test_source_root = os.path.dirname(__file__)  # noqa: F821
config.test_exec_root = os.path.join(os.path.dirname(__file__), ".lit")  # noqa: F821
sys.path.insert(0, os.path.join(config.test_source_root, "test"))  # noqa: F821
from support.forked_tools import fork_tools  # noqa: E402

# The tools of the environment that lit itself runs in, which need not be active.
bin_dir = os.path.dirname(sys.executable)
path = [bin_dir, os.environ["PATH"]]
config.environment["PATH"] = os.pathsep.join(path)  # noqa: F821
# What lit's shell starts processes with.
shell = types.ModuleType("subprocess")
vars(shell).update(vars(subprocess), Popen=fork_tools(pathlib.Path(bin_dir)))
lit.TestRunner.subprocess = shell

# RUN lines quote no paths, and the folder of a clone may have a blank in its name. So
# commands get their paths relative to the folder that they run in.
absolute_paths = lit.TestRunner.getDefaultSubstitutions


def relative_paths(test, *arguments, **named):
    folder = os.path.dirname(test.getExecPath())
    return [
        (name, os.path.relpath(path, folder) if name in ("%s", "%S", "%t") else path)
        for name, path in absolute_paths(test, *arguments, **named)
    ]


lit.TestRunner.getDefaultSubstitutions = relative_paths
if "PYTHONPATH" in os.environ:
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]  # noqa: F821
