"""
The golden record: what DistIR makes of many models, plans and searches, as digests and times.

A change that is not to change any result is shown against it (`make golden`); a change that
is to change some writes a new record, and the commit says which rows differ and why.
"""
