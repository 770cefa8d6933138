"""What is computed again, or held by the host, to save memory."""
