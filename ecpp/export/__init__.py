"""From runs to other people's code: files that prove themselves when they are written."""

from ecpp.export.check import Proof, verify
from ecpp.export.formats import FORMATS
from ecpp.export.write import check_export, export_run

__all__ = ["FORMATS", "Proof", "check_export", "export_run", "verify"]
