"""Running a program on clocks and memories instead of devices."""
