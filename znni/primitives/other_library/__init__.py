"""Networks in files of other libraries, which these compute window by window."""
