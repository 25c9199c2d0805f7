"""`--print-container`."""
