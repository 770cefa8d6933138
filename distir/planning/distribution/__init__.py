"""
The steps of `distribute`, in `distribute`: each is a file, which its pass calls as well.

`meshes` and `batches` come first, then `experts` and `context`; `padding`, `zero` and
`stored_layouts` concern the tensors that are stored; `buckets` and `overlap` come last.
"""
