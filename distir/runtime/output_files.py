"""
A stand-in for `distir.system.output_files`. Generated packages contain a copy of that
module in its place.
"""

from distir.system.output_files import replaced, write_text  # noqa: F401
