"""Validators: independent rules check every plan before it is used."""
