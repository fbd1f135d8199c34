"""The torch.distributed backend and its comm hooks, for programs that torch starts.

This package imports torch only with the module that needs it.
"""
