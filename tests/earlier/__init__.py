"""What earlier versions wrote, as tests read it."""
