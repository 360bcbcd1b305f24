"""Learning on the desk: finetune, contribution, export."""
