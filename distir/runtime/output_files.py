"""Stands for `distir.system.output_files`, which generated packages have a copy of here."""

from distir.system.output_files import replaced, write_text  # noqa: F401
