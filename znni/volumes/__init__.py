"""Reading and writing volumes. Each file format is one package."""
