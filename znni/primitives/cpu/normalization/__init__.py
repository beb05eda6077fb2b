"""Instance norm and group norm, with factor, shift and activation of each map."""
