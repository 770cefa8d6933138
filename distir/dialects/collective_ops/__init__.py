"""The ops of the `collective` dialect: what they have in common, and one file per kind."""
