"""R²SP's evaluation in clusters (its Section VI-A), one script for each figure."""
