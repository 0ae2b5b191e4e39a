"""What keeps calls going: waiting, progress, deadlines, hooks, statistics, and what ends."""
