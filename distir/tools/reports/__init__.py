"""The output of commands: errors, notes, tables and plots."""
