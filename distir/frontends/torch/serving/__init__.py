"""
Imports Hugging Face decoders for inference: the steps prefill and decode, with a static
cache.

- `caches`: the cache of each layer, as tensors that a step takes and returns;
- `modules`: modules around a model, one for each of the two steps;
- `importer`: imports both steps as the entries of one program.
"""
