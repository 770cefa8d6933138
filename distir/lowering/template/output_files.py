"""Stands for `distir.system.output_files`, of which generated packages have a copy in its place."""

from distir.system.output_files import replaced, write_text  # noqa: F401
