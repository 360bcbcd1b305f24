"""Validators: every plan is checked by rules of their own before it is used."""
