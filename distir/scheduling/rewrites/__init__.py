"""What schedules do to a program: groups of its ops are found, put apart and replaced."""
