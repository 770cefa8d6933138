"""
Profiles: the performance of devices and links in practice, in place of their data
sheets.
"""
