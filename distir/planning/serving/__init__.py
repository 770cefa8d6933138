"""
Plans for services that generate tokens: which degrees of parallelism, how many
replicas, aggregated or disaggregated. Step times are simulated from programs, the
service itself in `distir.serving`.
"""
