"""The costs of ops and communication on a cluster."""
