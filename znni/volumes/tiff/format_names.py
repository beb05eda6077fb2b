"""Names and numbers of TIFF that reading and writing share."""

NAME = "TIFF"
ATTRIBUTES = 65107  # a private tag with an output's attributes as JSON
UNITS = {  # by the names in OME-TIFF and ImageJ
    **{"nm": "nanometer", "mm": "millimeter", "cm": "centimeter", "m": "meter", "Å": "angstrom"},
    **dict.fromkeys(("um", "µm", "\u03bcm", "\\u00B5m", "micron", "microns"), "micrometer"),
}
OME_UNITS = {
    **{"nanometer": "nm", "millimeter": "mm", "centimeter": "cm", "meter": "m"},
    **{"angstrom": "Å", "micrometer": "µm"},
}
