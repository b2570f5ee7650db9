"""Generated protobuf code of the log records; `make proto` writes it, nobody edits it."""
