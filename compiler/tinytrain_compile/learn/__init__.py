"""Learning on the desk: finetune, contribution and export train with the generated C on this machine."""
