"""Names and numbers of NIfTI that reading and writing share."""

UNITS = {"meter": "meter", "mm": "millimeter", "micron": "micrometer"}
COMMENT = 6  # NIfTI's number of a header extension that is a comment
MARK = "znni:"  # a comment with an output's attributes begins like this
