"""
Services of the machine and of Python: files, installed packages and garbage collection.
Files are written completely or not at all. Nothing in this package depends on programs.
"""
