"""
What the larger passes are made of: `pipelines` for `pipeline`, `repeats` for
`outline-repeats`, `overlap` for `overlap-communication`.
"""
