"""How a run's servers and workers are paced: the books, one idea a file."""
