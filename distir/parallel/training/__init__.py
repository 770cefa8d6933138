"""The parts of a step of a parallel module in training."""
