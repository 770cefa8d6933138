"""
The steps of the pass `distribute`. Each step has its own file, which a pass for this
step alone calls too.

The file `distribute` runs the steps. `meshes` and `batches` come first, then `experts`
and `context`. `padding`, `zero` and `stored_layouts` treat the tensors that devices
store. `buckets` and `overlap` come last.
"""
