"""Schedules for families of models. Each file can be passed to `distir schedule`."""
