"""A Flower app whose server has FL-R²SP as its strategy."""
