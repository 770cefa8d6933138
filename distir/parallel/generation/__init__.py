"""
Generation with the parameters of a parallel module: its programs of prefill and decode,
and the method that runs them.
"""
