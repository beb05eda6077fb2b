"""The entry for NRRD files."""

from __future__ import annotations

from znni.volumes.formats.nrrd import ENDINGS, NAME
from znni.volumes.formats.nrrd.header import Header
from znni.volumes.text_header import functions_of

FUNCTIONS = functions_of(NAME, ENDINGS, Header)
