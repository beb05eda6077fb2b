"""Instance norm and group norm on a GPU."""
