"""Networks of other frameworks, imported, trained and written back."""
