"""Places in vLLM that the plugin can change. `table` is data and needs no vLLM; each hook is a file of its name."""
