"""What ops and communication cost on a cluster."""
