"""The arguments of commands, by what they are about."""
