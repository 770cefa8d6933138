"""Schedules for families of models. `distir schedule` takes each file by its name."""
