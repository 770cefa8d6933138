"""
The search for layouts: mesh axes one after the other or together (`search`), for a program
on its own or with micro-batches and stages (`over_time`, `searched`), inside a limit of
memory that the simulator agrees to (`fitted`).
"""
