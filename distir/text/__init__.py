"""
Programs as `.mlir` text: a parser that is fast on the long lists of types and values of
distributed programs, and a printer that gives repeated types a name.
"""

from distir.text.number_printer import ProgramTarget
from distir.text.parser import ProgramParser, new_context
from distir.text.printer import ProgramPrinter

__all__ = ["ProgramParser", "ProgramPrinter", "ProgramTarget", "new_context"]
