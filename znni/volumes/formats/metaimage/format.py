"""The entry for MetaImage files."""

from __future__ import annotations

from znni.volumes.formats.metaimage import ENDINGS, NAME
from znni.volumes.formats.metaimage.header import Header
from znni.volumes.text_header import functions_of

FUNCTIONS = functions_of(NAME, ENDINGS, Header)
