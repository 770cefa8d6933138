"""
Plans services that generate tokens: the degrees of parallelism, the number of replicas,
and aggregated or disaggregated placement. Step times are simulated from programs;
`distir.serving` simulates the service itself.
"""
