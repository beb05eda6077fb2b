"""Names and numbers of TIFF that reading and writing share."""

ATTRIBUTES = 65107  # a private tag with an output's attributes as JSON
OME_UNITS = {
    **{"nanometer": "nm", "millimeter": "mm", "centimeter": "cm", "meter": "m"},
    **{"angstrom": "Å", "micrometer": "µm"},
}
