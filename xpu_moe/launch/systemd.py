"""`--print-systemd`."""
