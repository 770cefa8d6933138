"""
Plans as the arguments of training systems, and arguments as plans.

One file per system (`megatron`, `nemo`, `bridge`, `deepspeed`, `torchtitan`, `nanotron`,
`accelerate`) holds the table of its options, each with the setting that it stands for, its
default and its source; `huggingface` is the table of model configurations. A table is
read in both directions. `settings` are the settings of a training run, `table` the rows,
`system` the steps that all systems share, `shell` reads scripts, `launcher` counts devices,
`files` reads JSON, YAML and TOML, `plan_file` joins settings and saved plans, and
`registry` lists the systems.
"""
