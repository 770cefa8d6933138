"""
Profiles: the performance of devices and links in practice. The figures of profiles
replace the figures of data sheets.
"""
