"""
Reads and writes programs as `.mlir` text. The parser is fast on the long lists of types
and values of distributed programs. The printer gives a name to each type that a program
repeats.
"""

from distir.text.number_printer import ProgramTarget
from distir.text.parser import ProgramParser, new_context
from distir.text.printer import ProgramPrinter

__all__ = ["ProgramParser", "ProgramPrinter", "ProgramTarget", "new_context"]
