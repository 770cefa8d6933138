"""
The steps of the pass `distribute`. Each step has its own file. Some steps also have a
pass of their own, which calls the same file.

The file `distribute` runs the steps. `meshes` and `batches` come first, then `experts`
and `context`. `padding`, `zero` and `stored_layouts` treat the tensors that devices
store. `buckets` and `overlap` come last.
"""
