"""NetStorm's evaluation (its Section IX), one script for each figure."""
