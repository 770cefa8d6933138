"""
Simulates a service that generates tokens: requests arrive, replicas of a model batch
them continuously, and metrics tell how long requests waited.

The room knows no IR. A `StepTimes` says how long a step of a replica takes, and plans
come from `distir.planning.serving`. Everything is deterministic: the same requests,
replicas and step times give the same result.
"""
