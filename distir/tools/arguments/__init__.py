"""The arguments of the commands, one module for each subject."""
