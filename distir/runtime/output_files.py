"""Stands for `distir.output_files`, of which generated packages have a copy in its place."""

from distir.output_files import replaced, write_text  # noqa: F401
