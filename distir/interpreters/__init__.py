"""
Interpreters of programs. Each interpreter represents a value in its own way: as an
array (`reference`), as a type (`types`), as an array if the elements are known and as a
type otherwise (`mixed`), or as time and memory (`simulator`).
"""
