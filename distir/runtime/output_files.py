"""
A stand-in for `distir.system.output_files`. Generated packages contain a copy of
`distir.system.output_files` instead of this module.
"""

from distir.system.output_files import replaced, write_text  # noqa: F401
