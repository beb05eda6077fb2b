"""Connected components of volumes larger than memory, and rules that remove some of them.

A volume is read in slabs: boxes of whole planes, one after the other.
"""
