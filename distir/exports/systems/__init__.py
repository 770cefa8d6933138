"""
Converts plans to the options of training systems, and these options to plans.

One file per system (`megatron`, `nemo`, `bridge`, `deepspeed`, `torchtitan`,
`nanotron`, `accelerate`) holds the table of its options. Each option names its setting,
its default and its source. `huggingface` is the table of model configurations. Reading
and writing use the same table. `settings` has the settings of a training run, `table`
the rows of tables, and `system` the steps that all systems share. `shell` reads
scripts, `launcher` counts devices, and `files` reads JSON, YAML and TOML. `plan_file`
converts between settings and saved plans. `registry` lists the systems.
"""
