"""Programs that tests start, which replace functions of PyTorch's when they are imported."""

collect_ignore = ["torch_suite.py"]
