"""
The search of `auto-parallel`: meshes, stages and layouts (`space`), round after round
(`auto`), judged by the simulator, and what came out (`results`, `explain`).
"""
