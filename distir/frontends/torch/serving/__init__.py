"""
Imports decoders of Hugging Face for inference: prefill and decode with a static cache.

- `caches`: the cache of each layer as tensors that a step takes and returns;
- `modules`: the modules of the two steps around a model;
- `importer`: imports both as the entries of one program.
"""
