"""Generated protobuf code of the public API; `make proto` writes it, nobody edits it."""
