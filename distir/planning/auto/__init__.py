"""
The search that `auto-parallel` runs, over meshes, pipeline stages and layouts.

`space` enumerates the plans, `auto` judges them by the simulator in rounds, and
`results` and `explain` report the findings.
"""
