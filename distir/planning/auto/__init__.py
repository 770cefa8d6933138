"""
The search of `auto-parallel` over meshes, stages and layouts.

`space` enumerates the plans, `auto` judges them by the simulator round after round,
`results` and `explain` report the findings.
"""
