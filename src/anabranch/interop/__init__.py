"""Ways in for programs that other libraries start: a torch.distributed backend, and its hooks.

A module here loads its library only when it is imported itself.
"""
