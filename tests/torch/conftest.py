"""Programs that tests start, which replace functions of PyTorch's when they are imported."""

collect_ignore = ["restarted.py", "torch_suite.py"]
