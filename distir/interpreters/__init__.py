"""
Interpreters of programs, which differ in what stands for a value: arrays (`reference`),
types (`types`), arrays where they are known and types elsewhere (`mixed`), and time and
memory (`simulator`).
"""
