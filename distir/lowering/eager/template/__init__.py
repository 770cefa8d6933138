"""Code that `distir export --to dtensor` copies into what it writes."""
