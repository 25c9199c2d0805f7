"""Intel's compiler and Level Zero driver without an Intel GPU: fetched, and run on a card that is not there."""
