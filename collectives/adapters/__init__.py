"""One module per framework: each turns that framework's tensors into leaves (see `leaf`)."""
