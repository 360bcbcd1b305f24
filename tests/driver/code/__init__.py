"""How much code a build has."""
