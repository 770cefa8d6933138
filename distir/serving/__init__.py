"""
Simulates a service that generates tokens. Requests arrive, replicas of a model batch
them continuously, and metrics measure the waiting times of requests.

This package does not use the IR. A `StepTimes` gives the time of a replica's step, and
`distir.planning.serving` makes plans of services. The simulation is deterministic:
equal requests, replicas and step times give equal results.
"""
