"""What commands print: errors and notes, tables, plots."""
