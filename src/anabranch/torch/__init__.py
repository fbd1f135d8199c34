"""The torch.distributed backend, and its hooks: a way in for programs that torch starts.

A module here loads torch only when it is imported itself.
"""
