"""The intermediate representation: values, nodes, graphs, their builder, checker and text form. Imports numpy only."""
