"""
Profiles: the performance of devices and links in practice. They replace the figures of
data sheets.
"""
