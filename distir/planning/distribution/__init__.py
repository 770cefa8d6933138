"""
The steps of the pass `distribute`. Each step is in a file, which its own pass calls
too.

The file `distribute` runs the steps. `meshes` and `batches` come first, then `experts`
and `context`. `padding`, `zero` and `stored_layouts` treat the tensors that devices
store. `buckets` and `overlap` come last.
"""
