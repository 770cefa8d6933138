"""The parts of `overlap-communication`: which collectives go where."""
