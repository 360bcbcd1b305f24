"""What `--update auto` and its kin look for: updates, micro-batches, boards, smallest arenas, ways out."""
