"""
Profiles: what devices and links reach in practice, instead of what their data sheets say.
"""
